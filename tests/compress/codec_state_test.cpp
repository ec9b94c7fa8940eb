// Saved codec states: what load() restores, and what it rejects as corrupt.
#include "compress/codec_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/base/error.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

class CodecStateTest : public testing::Test {
 protected:
  CodecStateTest() {
    header.set_family("sparse_learned");
    header.seed = 1;
    header.weight_hash = 2;
    header.m = 3;
    header.n = 4;
    header.dm = 2;
    header.dn = 2;
    header.nnz = 1;
    header.generation = 9;
    header.value_count = 3;
  }
  void refused(const std::vector<std::byte>& bytes, const char* text) {
    EXPECT_THAT([&] { read_codec_state(bytes, header); }, ThrowsMessage<Corrupt>(HasSubstr(text)));
  }
  std::vector<std::byte> stored() { return write_codec_state(header, p, q); }

  CodecStateHeader header;
  std::vector<float> p = {1, 2}, q = {3};
};

TEST_F(CodecStateTest, ValuesAndGenerationComeBack) {
  CodecStateHeader expected = header;
  expected.generation = 0;
  const CodecState state = read_codec_state(stored(), expected);
  EXPECT_EQ(state.header.generation, 9U);
  EXPECT_EQ(state.values, (std::vector<float>{1, 2, 3}));
}

TEST_F(CodecStateTest, EmptyAndForeignBytesAreCorrupt) {
  refused({}, "0 bytes");
  refused(std::vector<std::byte>(200), "do not start with a header");
}

TEST_F(CodecStateTest, EveryTruncationIsCorrupt) {
  const std::vector<std::byte> whole = stored();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THROW(read_codec_state(std::span(whole).first(size), header), Corrupt) << size;
  }
}

TEST_F(CodecStateTest, TrailingBytesAreCorrupt) {
  std::vector<std::byte> longer = stored();
  longer.push_back(std::byte{0});
  refused(longer, "bytes of values is 13, expected 12");
}

TEST_F(CodecStateTest, EveryDifferenceIsNamed) {
  const auto with = [&](auto change) {
    CodecStateHeader other = header;
    change(other);
    return write_codec_state(other, p, q);
  };
  refused(with([](auto& h) {
            h.family = {};
            h.set_family("identity");
          }),
          "family is identity, expected sparse_learned");
  refused(with([](auto& h) { h.seed = 7; }), "seed is 7, expected 1");
  refused(with([](auto& h) { h.weight_hash = 7; }), "weight hash is 7");
  refused(with([](auto& h) { h.m = 7; }), "rows of the weight is 7");
  refused(with([](auto& h) { h.n = 7; }), "columns of the weight is 7");
  refused(with([](auto& h) { h.dm = 7; }), "rows of the core is 7");
  refused(with([](auto& h) { h.dn = 7; }), "columns of the core is 7");
  refused(with([](auto& h) { h.nnz = 7; }), "nonzeros or block is 7");
  p.push_back(0);
  refused(stored(), "values is 4, expected 3");
}

}  // namespace
}  // namespace sluiceway::test
