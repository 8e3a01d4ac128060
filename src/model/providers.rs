//! "provider:name" -> Model
