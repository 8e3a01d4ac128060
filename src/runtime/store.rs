//! The Store: items that outlive threads. Every owner has a Store of their own, its *space*.
//!
//! All writes of clients and tools go through here. Reads do, too, since reading may extend the lifetime of an item.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Map, Value};

use crate::db::ListPart;
use crate::db::items::{self, MOST_COMPARED, NamespaceSearch};
use crate::db::{Db, DbError, DbResult};
use crate::domain::Invalid;
use crate::domain::access::Ownership;
use crate::domain::item::{FoundItem, Item, ItemAddress, ItemLifetime, ItemQuery, Namespace, NewItem, PreparedItem};
use crate::domain::machine::Failure;
use crate::domain::state::FileFacts;
use crate::domain::time::Clock;
use crate::model::ModelError;
use crate::tool::Items;

mod index;

pub use index::IndexParts;

use index::{Index, IndexError};

/// The most memory that the items found by one tool call may take, in bytes, approximately: the same as the largest
/// answer of a tool.
const MOST_FOUND_BYTES: usize = 8 * 1024 * 1024;

/// The settings of the Store that the owner of the server chooses.
#[derive(Debug, Clone, Copy)]
pub struct StoreSettings {
    /// The lifetime of an item for which none is given; unlimited when none.
    pub default_ttl: Option<Duration>,
    /// True if a read restarts the lifetime of an item, unless the request says otherwise.
    pub refresh_on_read: bool,
    /// The pause between two removals of expired items. Readers do not see an expired item even before its removal.
    pub sweep_interval: Duration,
}

impl Default for StoreSettings {
    fn default() -> Self {
        Self {
            default_ttl: None,
            refresh_on_read: true,
            sweep_interval: Duration::from_secs(300),
        }
    }
}

/// The error of a write or a search in the Store.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The item or the query is invalid.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The embedding model failed, so the item or the query has no vectors.
    #[error("the embedding model failed: {0}")]
    Embedding(ModelError),
    /// The database failed.
    #[error(transparent)]
    Fault(#[from] DbError),
}

impl From<IndexError> for StoreError {
    fn from(error: IndexError) -> Self {
        match error {
            IndexError::Invalid(error) => Self::Invalid(error),
            IndexError::Model(error) => Self::Embedding(error),
        }
    }
}

/// The Store. Cheap to clone.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    db: Db,
    clock: Arc<dyn Clock>,
    settings: StoreSettings,
    index: Option<Index>,
}

impl Store {
    /// Opens the Store in this database.
    ///
    /// # Errors
    /// Returns an error when an index is configured and the database does not answer.
    pub async fn open(
        db: Db,
        clock: Arc<dyn Clock>,
        settings: StoreSettings,
        index: Option<IndexParts>,
    ) -> DbResult<Self> {
        let index = match index {
            Some(parts) => Some(Index::open(&db, parts).await?),
            None => None,
        };
        Ok(Self(Arc::new(Inner {
            db,
            clock,
            settings,
            index,
        })))
    }

    /// Returns the space of an owner, as agents see it.
    pub(super) fn space_of(&self, ownership: Ownership) -> StoreSpace {
        StoreSpace {
            store: self.clone(),
            ownership,
        }
    }

    /// Writes an item into the space of an owner. An existing item at the same address is replaced.
    ///
    /// # Errors
    /// See [`StoreError`]; nothing is written then.
    pub async fn put(&self, space: &Ownership, item: NewItem) -> Result<(), StoreError> {
        let draft = self.draft(item).await?;
        let space = space.clone();
        let now = self.0.clock.now();
        self.0
            .db
            .write(move |tx| Box::pin(async move { items::put(tx, &space, &draft, now).await }))
            .await?;
        Ok(())
    }

    /// Prepares an item for writing. The embedding model is called before anything is written, so that no item is
    /// stored without the vectors by which a search finds it.
    async fn draft(&self, item: NewItem) -> Result<PreparedItem, StoreError> {
        let ttl = match item.lifetime {
            ItemLifetime::AsConfigured => self.0.settings.default_ttl,
            ItemLifetime::Forever => None,
            ItemLifetime::For(ttl) => Some(ttl),
        };
        let draft = PreparedItem::new(item.address, item.value, ttl)?;
        let vectors = match &self.0.index {
            Some(index) => index.vectors(&draft.value, &item.indexing).await?,
            None => vec![],
        };
        Ok(PreparedItem { vectors, ..draft })
    }

    /// Returns the item at this address of a space. The read may restart the lifetime of the item: as configured,
    /// unless `refresh` says otherwise.
    ///
    /// # Errors
    /// Returns an error when the database fails.
    pub async fn get(&self, space: &Ownership, address: ItemAddress, refresh: Option<bool>) -> DbResult<Option<Item>> {
        let now = self.0.clock.now();
        let space_of_read = space.clone();
        let found = self
            .0
            .db
            .read(move |tx| Box::pin(async move { items::find(tx, &space_of_read, &address, now).await }))
            .await?;
        self.was_read(space, found.iter(), refresh).await?;
        Ok(found)
    }

    /// Puts `after` in the place of the item at this address of a space, if the value of the item is still `before`.
    /// `None` means that there is no item. Returns whether it was.
    ///
    /// # Errors
    /// See [`StoreError`]; nothing is written then.
    pub async fn replace(
        &self,
        space: &Ownership,
        address: ItemAddress,
        before: Option<Map<String, Value>>,
        after: Option<NewItem>,
    ) -> Result<bool, StoreError> {
        let after = match after {
            Some(item) => Some(self.draft(item).await?),
            None => None,
        };
        let space = space.clone();
        let now = self.0.clock.now();
        let replaced: DbResult<bool> = self
            .0
            .db
            .write(move |tx| {
                Box::pin(async move {
                    items::lock(tx, &space, &address).await?;
                    let there = items::find(tx, &space, &address, now).await?;
                    if there.map(|item| item.value) != before {
                        return Ok(false);
                    }
                    match &after {
                        Some(draft) => items::put(tx, &space, draft, now).await?,
                        None => items::delete(tx, &space, &address, now).await.map(drop)?,
                    }
                    Ok(true)
                })
            })
            .await;
        Ok(replaced?)
    }

    /// Returns the keys of the items in exactly this namespace of a space, in order, up to `most`.
    ///
    /// # Errors
    /// Returns an error when the database fails.
    pub async fn keys(
        &self,
        space: &Ownership,
        namespace: Namespace,
        at: String,
        most: usize,
    ) -> DbResult<Vec<String>> {
        let now = self.0.clock.now();
        let space = space.clone();
        self.0
            .db
            .read(move |tx| Box::pin(async move { items::keys(tx, &space, &namespace, &at, most, now).await }))
            .await
    }

    /// Returns what is known of the files in the items with these keys, in exactly this namespace of a space. That is no
    /// read: the lifetimes of the items do not change.
    ///
    /// # Errors
    /// Returns an error when the database fails.
    pub async fn file_facts(
        &self,
        space: &Ownership,
        namespace: Namespace,
        keys: Vec<String>,
    ) -> DbResult<BTreeMap<String, FileFacts>> {
        let now = self.0.clock.now();
        let space = space.clone();
        self.0
            .db
            .read(move |tx| Box::pin(async move { items::file_facts(tx, &space, &namespace, &keys, now).await }))
            .await
    }

    /// Deletes an item from a space. Returns whether it existed.
    ///
    /// # Errors
    /// Returns an error when the database fails.
    pub async fn delete(&self, space: &Ownership, address: ItemAddress) -> DbResult<bool> {
        let now = self.0.clock.now();
        let space = space.clone();
        self.0
            .db
            .write(move |tx| Box::pin(async move { items::delete(tx, &space, &address, now).await }))
            .await
    }

    /// Returns the items of a space that match a search. Without a query they are in the order of their namespaces and
    /// keys, and take about `bytes` of memory at most. With a query the closest come first, and only items in the index
    /// are found. The search may restart the lifetime of the items found.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn search(
        &self,
        space: &Ownership,
        inquiry: ItemQuery,
        bytes: usize,
    ) -> Result<ListPart<FoundItem>, StoreError> {
        let ItemQuery { wanted, query, refresh } = inquiry;
        let near = match (&self.0.index, query.filter(|query| !query.trim().is_empty())) {
            (Some(index), Some(query)) => Some(index.near(&query).await?),
            (None, _) | (_, None) => None,
        };
        let now = self.0.clock.now();
        let space_of_read = space.clone();
        let searched = self.0.db.search(move |tx| {
            Box::pin(async move {
                match near {
                    Some(near) => {
                        let found = items::nearest(tx, &space_of_read, &wanted, &near, now).await?;
                        let part = |found: Vec<FoundItem>| ListPart {
                            rows: found.into_iter().map(Some).collect(),
                            is_cut: false,
                        };
                        Ok(found.map(part))
                    }
                    None => {
                        let found = items::search(tx, &space_of_read, &wanted, bytes, now).await?;
                        Ok(Some(found.map(|item| FoundItem { item, score: None })))
                    }
                }
            })
        });
        let found = searched.await?.ok_or_else(|| {
            let reason = format!("has more than {MOST_COMPARED} texts below it; search in a narrower one");
            Invalid::new("namespace_prefix", reason)
        })?;
        let items = found.rows.iter().flatten().map(|found| &found.item);
        self.was_read(space, items, refresh).await?;
        Ok(found)
    }

    /// Returns the namespaces of a space that have items.
    ///
    /// # Errors
    /// Returns an error when the database fails.
    pub async fn namespaces(&self, space: &Ownership, wanted: NamespaceSearch) -> DbResult<Vec<Namespace>> {
        let now = self.0.clock.now();
        let space = space.clone();
        self.0
            .db
            .search(move |tx| Box::pin(async move { items::list_namespaces(tx, &space, &wanted, now).await }))
            .await
    }

    /// Restarts the lifetime of these items, except of those that do not expire, if reads do that.
    async fn was_read(
        &self,
        space: &Ownership,
        items: impl Iterator<Item = &Item>,
        refresh: Option<bool>,
    ) -> DbResult<()> {
        let ageing = items.filter(|item| item.expires_at.is_some());
        let ageing: Vec<ItemAddress> = ageing.map(|item| item.address.clone()).collect();
        if ageing.is_empty() || !refresh.unwrap_or(self.0.settings.refresh_on_read) {
            return Ok(());
        }
        let now = self.0.clock.now();
        let space = space.clone();
        self.0
            .db
            .write(move |tx| Box::pin(async move { items::refresh(tx, &space, &ageing, now).await }))
            .await
    }

    /// Returns the pause between two removals of expired items.
    pub(super) fn sweep_interval(&self) -> Duration {
        self.0.settings.sweep_interval
    }
}

/// Returns the error for a tool that could not read or write. The cause is logged and not shown to the model.
fn failure_of(error: StoreError) -> Failure {
    match error {
        StoreError::Invalid(error) => Failure::new("InvalidItemError", error.to_string()),
        StoreError::Embedding(error) => {
            tracing::warn!(%error, "the embedding model of the store failed");
            Failure::new(
                error.class(),
                "the embedding model of the store failed; nothing was stored",
            )
        }
        StoreError::Fault(error) => {
            tracing::error!(%error, "the database failed under a tool");
            Failure::new("StorageError", "the store does not answer")
        }
    }
}

/// The space of the owner of a thread, in which the agents of the thread work.
pub(super) struct StoreSpace {
    store: Store,
    ownership: Ownership,
}

#[async_trait]
impl Items for StoreSpace {
    async fn get(&self, address: ItemAddress) -> Result<Option<Item>, Failure> {
        let found = self.store.get(&self.ownership, address, None).await;
        found.map_err(|error| failure_of(error.into()))
    }

    async fn search(&self, inquiry: ItemQuery) -> Result<Vec<FoundItem>, Failure> {
        let found = self.store.search(&self.ownership, inquiry, MOST_FOUND_BYTES).await;
        found.map(ListPart::into_items).map_err(failure_of)
    }

    async fn draft(&self, item: NewItem) -> Result<PreparedItem, Failure> {
        self.store.draft(item).await.map_err(failure_of)
    }

    async fn keys(&self, namespace: Namespace, at: String, most: usize) -> Result<Vec<String>, Failure> {
        let found = self.store.keys(&self.ownership, namespace, at, most).await;
        found.map_err(|error| failure_of(error.into()))
    }

    async fn file_facts(
        &self,
        namespace: Namespace,
        keys: Vec<String>,
    ) -> Result<BTreeMap<String, FileFacts>, Failure> {
        let known = self.store.file_facts(&self.ownership, namespace, keys).await;
        known.map_err(|error| failure_of(error.into()))
    }

    async fn replace(
        &self,
        address: ItemAddress,
        before: Option<Map<String, Value>>,
        after: Option<NewItem>,
    ) -> Result<bool, Failure> {
        let replaced = self.store.replace(&self.ownership, address, before, after).await;
        replaced.map_err(failure_of)
    }
}
