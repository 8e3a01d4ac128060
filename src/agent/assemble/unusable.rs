//! What stands in for a model that cannot be had.

use std::sync::Arc;

use futures::stream::BoxStream;

use crate::model::{Model, ModelError, ModelEvent, ModelRequest};

/// Stands in for a model that cannot be had; says why when it is asked.
pub(super) struct Unusable(ModelError);

impl Unusable {
    pub(super) fn because(error: ModelError) -> Arc<dyn Model> {
        Arc::new(Self(error))
    }
}

#[async_trait::async_trait]
impl Model for Unusable {
    fn identity(&self) -> (&str, &str) {
        ("none", "none")
    }

    async fn ask(&self, _: ModelRequest) -> Result<BoxStream<'static, Result<ModelEvent, ModelError>>, ModelError> {
        Err(self.0.clone())
    }
}
