"""The commands' arguments, and what they show. torch is imported only where one runs."""
