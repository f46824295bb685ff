"""`dendro mcp-server`: sessions as tools of an MCP server, for any client of the protocol.

tools      the tools, their arguments and what they answer
requests   an approval or a question as a form for the client's person, and the answer as an op
turns      one turn, followed to its end: progress, requests, its outcome
door       the server: which call leads to what, cancels, and the end of a connection
"""
