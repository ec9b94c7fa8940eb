#include "tests/support/simt/symbols.h"

#include <cxxabi.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <simt_device.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <iterator>
#include <map>
#include <sstream>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/base/check.h"

namespace sluiceway::simt {
namespace {

struct Program {
  std::uintptr_t base = 0;                                           // Where it was loaded.
  std::vector<std::pair<std::uintptr_t, std::uintptr_t>> read_only;  // [begin, end)
};

const Program& program() {
  static const Program found = [] {
    Program result;
    dl_iterate_phdr(
        [](dl_phdr_info* module, std::size_t, void* out) {
          auto& all = *static_cast<Program*>(out);
          all.base = module->dlpi_addr;
          for (int i = 0; i < module->dlpi_phnum; ++i) {
            const ElfW(Phdr)& segment = module->dlpi_phdr[i];
            if (segment.p_type != PT_LOAD || (segment.p_flags & PF_W) != 0) continue;
            const std::uintptr_t begin = module->dlpi_addr + segment.p_vaddr;
            all.read_only.emplace_back(begin, begin + segment.p_memsz);
          }
          return 1;  // The first is the program itself.
        },
        &result);
    return result;
  }();
  return found;
}

std::string demangle(const char* name) {
  int status = 0;
  char* const text = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  std::string result = status == 0 ? text : name;
  std::free(text);
  return result;
}

std::string without(std::string text, const std::string& part) {
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part)) {
    text.erase(at, part.size());
  }
  return text;
}

std::string readable(const char* name) {
  return without(without(demangle(name), "(anonymous namespace)::"), "sluiceway::");
}

// The program's file, mapped permanently: names are read in place.
const std::byte* own_file() {
  const int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  struct stat status = {};
  if (file < 0 || fstat(file, &status) != 0) return nullptr;
  void* const first =
      mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ, MAP_PRIVATE, file, 0);
  close(file);
  return first == MAP_FAILED ? nullptr : static_cast<const std::byte*>(first);
}

template <class Visit>
void visit_symbols(const Visit& visit) {
  const std::byte* const bytes = own_file();
  if (bytes == nullptr) return;
  const auto& header = *reinterpret_cast<const ElfW(Ehdr)*>(bytes);
  const auto* const sections = reinterpret_cast<const ElfW(Shdr)*>(bytes + header.e_shoff);
  for (int i = 0; i < header.e_shnum; ++i) {
    if (sections[i].sh_type != SHT_SYMTAB) continue;
    const auto* const texts =
        reinterpret_cast<const char*>(bytes + sections[sections[i].sh_link].sh_offset);
    const auto* const symbols = reinterpret_cast<const ElfW(Sym)*>(bytes + sections[i].sh_offset);
    for (std::size_t s = 0; s < sections[i].sh_size / sizeof(ElfW(Sym)); ++s) {
      visit(symbols[s].st_info & 0xF, symbols[s], texts + symbols[s].st_name);
    }
  }
}

std::unordered_map<std::uintptr_t, const char*> read_functions() {
  std::unordered_map<std::uintptr_t, const char*> names;
  visit_symbols([&](int type, const ElfW(Sym) & symbol, const char* name) {
    if (type == STT_FUNC) names.emplace(symbol.st_value, name);
  });
  return names;
}

struct Variable {
  std::size_t bytes;
  const char* name;
};

// Indexed by offset. A host variable that starts at such an offset by chance does no harm.
std::map<std::size_t, Variable> read_shared_variables() {
  std::map<std::size_t, Variable> found;
  visit_symbols([&](int type, const ElfW(Sym) & symbol, const char* name) {
    if (type != STT_TLS || symbol.st_value % kSharedAlignment != 0) return;
    found.emplace(symbol.st_value, Variable{symbol.st_size, name});
  });
  return found;
}

}  // namespace

std::string function_name(const void* address) {
  static const auto names = read_functions();
  const auto found = names.find(reinterpret_cast<std::uintptr_t>(address) - program().base);
  if (found == names.end()) return "without a name";
  return readable(found->second);
}

std::string outside_of_shared(std::size_t offset, std::size_t bytes) {
  static const auto variables = read_shared_variables();
  const auto next = variables.upper_bound(offset);
  const auto place = [](const char* where, const Variable& variable) {
    return concat(where, readable(variable.name), ", of ", variable.bytes, " bytes");
  };
  if (next != variables.begin()) {
    const auto& [first, variable] = *std::prev(next);
    const std::size_t end = first + variable.bytes;
    if (offset + bytes <= end) return "";
    const std::size_t past = offset < end ? 0 : offset - end;
    if (next == variables.end() || past <= next->first - offset) {
      return concat(past, place(" bytes past the end of ", variable));
    }
  }
  if (next == variables.end()) return "where no shared variable is";
  return concat(next->first - offset, place(" bytes before ", next->second));
}

std::string line_hint(const void* return_address) {
  if (return_address == nullptr) return "";
  std::ostringstream text;
  text << "; addr2line -ie " << program_invocation_name << " 0x" << std::hex
       << reinterpret_cast<std::uintptr_t>(return_address) - program().base - 1
       << " names the line";
  return text.str();
}

bool in_constants(const void* address, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  for (const auto& [first, last] : program().read_only) {
    if (begin >= first && begin + bytes <= last) return true;
  }
  return false;
}

}  // namespace sluiceway::simt
