//! Tools behind HTTP and MCP servers that say too much, hang, or leave processes behind.
