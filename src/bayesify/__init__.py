"""Know how sure your network is."""
