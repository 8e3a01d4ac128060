//! plays a script
