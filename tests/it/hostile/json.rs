//! Documents that nest too deeply, hold too many values, or contain U+0000, from every side.
