//! The codecs of columns: how values become texts, and texts values.
//!
//! A value is encoded as [JSON](json), its large contents are cut out of the text as [blobs], which are stored once for a tenant,
//! the rest is brought into the [short form](short_form), and the result is sealed with the key of the [tenant](sealers).

pub(super) mod blobs;
pub(super) mod json;
mod sealers;
pub(super) mod short_form;
