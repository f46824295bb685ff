"""`dendro mcp-server`: sessions as tools of an MCP server, for any client of the protocol.

tools      the tools, their arguments and what they answer
door       the server: which call leads to what, cancels, and the end of a connection; a turn,
           followed to its end: progress, requests as forms and their answers, its outcome
"""
