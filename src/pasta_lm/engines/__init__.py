"""Where tokens come from: what is asked of an engine, vocabularies, scripted and local engines."""
