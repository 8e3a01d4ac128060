//! Streams: runs, threads, and the second version of the protocol.

mod custom_mode;
mod events_mode;
mod incomplete_answers;
mod joins;
mod lean_metadata;
mod other_servers;
#[cfg(feature = "nats")]
mod over_encrypted_nats;
#[cfg(feature = "nats")]
mod over_nats;
mod runs;
mod threads;
mod usage;
pub(crate) mod v2;
mod v2_interrupts;
pub(crate) mod v2_replays;
mod v2_websockets;
mod visibility;
