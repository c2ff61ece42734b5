"""Engines: requests and answers, vocabularies, the scripted engine and the local one."""
