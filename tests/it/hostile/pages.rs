//! Web pages of other origins: content types, `Origin`, `Host`, CORS, and the headers of pages.
