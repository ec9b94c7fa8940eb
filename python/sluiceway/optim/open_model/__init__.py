"""What an open optimizer has to do with its model beside hooks: who reads it, who owns what."""
