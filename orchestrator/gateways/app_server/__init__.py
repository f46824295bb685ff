"""The app-server door: JSON-RPC for terminals, SDKs and editors, versions 1 and 2 told apart by method."""
