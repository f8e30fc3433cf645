"""Files that outlive the process that writes them: whole, sealed, and one writer at a time."""
