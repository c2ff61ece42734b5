"""What we learn from: records, their encoding, packs; rollouts, their scores, pairs."""
