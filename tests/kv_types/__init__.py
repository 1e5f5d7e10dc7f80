"""Tests of the vocabulary: identities, keys, masks, layouts, records."""
