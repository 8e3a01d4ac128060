//! The whole server under a limit of 512 MiB, and ten thousand generated hostile requests.
