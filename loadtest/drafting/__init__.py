"""What drafts gain: the requests, the streams that send them, and other programs that draft."""
