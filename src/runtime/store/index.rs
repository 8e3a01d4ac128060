//! The index of the Store: the texts of an item by which it is found, and the model that embeds them.

use std::sync::Arc;

use crate::db::items::{MOST_COMPARED, VectorQuery, VectorSearch};
use crate::db::{Db, DbResult};
use crate::domain::Invalid;
use crate::domain::item::texts::texts;
use crate::domain::item::{Indexing, ItemVector, TextPath};
use crate::model::ModelError;
use crate::model::embedding::Embedder;

/// The maximum length of a query, in bytes.
const LONGEST_QUERY: usize = 8192;

/// The parts from which an index is made.
pub struct IndexParts {
    /// The model that turns texts into vectors.
    pub embedder: Arc<dyn Embedder>,
    /// The fields whose texts are indexed, unless an item names others.
    pub fields: Vec<TextPath>,
}

/// The index.
pub(super) struct Index {
    parts: IndexParts,
    by: VectorSearch,
}

/// The reason why an item or a query has no vectors.
pub(super) enum IndexError {
    /// The item or the query is invalid.
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
    /// Opens the index and logs the method of comparing vectors.
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

    /// Returns the vectors of an item.
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

    /// Returns the vector query for the text of a query.
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
