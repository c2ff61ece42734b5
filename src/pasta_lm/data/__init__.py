"""What we learn from: records, their encoding, packs."""
