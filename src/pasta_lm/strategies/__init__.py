"""Ways to answer a prompt, one file each; all use one engine and one kind of trace."""
