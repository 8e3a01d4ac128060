//! The index of the Store: the texts of an item by which it is found, and the model that embeds them.

use std::sync::Arc;

use crate::db::items::{MOST_COMPARED, VectorQuery, VectorSearch};
use crate::db::{Db, DbResult};
use crate::domain::Invalid;
use crate::domain::item::texts::texts;
use crate::domain::item::{Indexing, ItemVector, TextPath};
use crate::model::ModelError;
use crate::model::embedding::Embedder;

/// The longest question, in bytes.
const LONGEST_QUERY: usize = 8192;

/// What an index is made with.
pub struct IndexParts {
    /// Turns texts into vectors.
    pub embedder: Arc<dyn Embedder>,
    /// The texts by which items are found that do not say otherwise.
    pub fields: Vec<TextPath>,
}

/// The index.
pub(super) struct Index {
    parts: IndexParts,
    by: VectorSearch,
}

/// Why an item or a question has no vectors.
pub(super) enum IndexError {
    /// It cannot be as it is.
    Invalid(Invalid),
    /// The model failed.
    Model(ModelError),
}

impl From<Invalid> for IndexError {
    fn from(error: Invalid) -> Self {
        Self::Invalid(error)
    }
}

impl Index {
    /// Opens the index and says who compares.
    pub(super) async fn open(db: &Db, parts: IndexParts) -> DbResult<Self> {
        let by = db.vector_search().await?;
        match by {
            VectorSearch::Extension => tracing::info!("the store is searched by meaning with pgvector"),
            VectorSearch::Scan => tracing::info!(
                most = MOST_COMPARED,
                "the store is searched by meaning by comparing all vectors below the namespace asked for"
            ),
        }
        Ok(Self { parts, by })
    }

    /// The vectors of an item.
    pub(super) async fn vectors(
        &self,
        value: &serde_json::Map<String, serde_json::Value>,
        indexing: &Indexing,
    ) -> Result<Vec<ItemVector>, IndexError> {
        let fields = match indexing {
            Indexing::AsConfigured => &self.parts.fields,
            Indexing::Fields(fields) => fields,
            Indexing::Off => return Ok(vec![]),
        };
        let (paths, texts): (Vec<String>, Vec<String>) = texts(value, fields)?.into_iter().unzip();
        if texts.is_empty() {
            return Ok(vec![]);
        }
        let vectors = self.parts.embedder.embed(texts).await.map_err(IndexError::Model)?;
        let pairs = paths.into_iter().zip(vectors);
        Ok(pairs.map(|(path, vector)| ItemVector { path, vector }).collect())
    }

    /// What a question looks for.
    pub(super) async fn near(&self, query: &str) -> Result<VectorQuery, IndexError> {
        if query.len() > LONGEST_QUERY {
            return Err(Invalid::new("query", format!("is longer than {LONGEST_QUERY} bytes")).into());
        }
        let vectors = self
            .parts
            .embedder
            .embed(vec![query.to_owned()])
            .await
            .map_err(IndexError::Model)?;
        let vector = vectors.into_iter().next().unwrap_or_default();
        Ok(VectorQuery { vector, by: self.by })
    }
}
