"""What is installed and found on this machine, and what to do where something is missing."""
