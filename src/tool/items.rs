//! The Store as tools see it. Reads happen at once; writes are part of the call's result and are committed exactly
//! once, in the same transaction as that result.

use std::collections::BTreeMap;

use async_trait::async_trait;
use serde_json::{Map, Value};

use crate::domain::item::{FoundItem, Item, ItemAddress, ItemQuery, Namespace, NewItem, PreparedItem};
use crate::domain::machine::Failure;
use crate::domain::state::FileFacts;

/// Read access to the Store, and preparation of items to write.
#[async_trait]
pub trait Items: Send + Sync {
    /// Returns the item at this address.
    ///
    /// # Errors
    /// When the Store cannot be read.
    async fn get(&self, address: ItemAddress) -> Result<Option<Item>, Failure>;

    /// Searches for items, ordered by similarity if the inquiry has a query text.
    ///
    /// # Errors
    /// When the inquiry is invalid, or the Store or its embedding model fails.
    async fn search(&self, inquiry: ItemQuery) -> Result<Vec<FoundItem>, Failure>;

    /// Prepares an item for a write; the tool puts it into [`Answer::changes`](crate::domain::call::ToolOutput).
    ///
    /// # Errors
    /// When the item is invalid, or the embedding model fails.
    async fn draft(&self, item: NewItem) -> Result<PreparedItem, Failure>;

    /// Returns the keys of the items in exactly this namespace that are the path `at` or below it, in order, up to `most`.
    ///
    /// # Errors
    /// When the Store cannot be read.
    async fn keys(&self, namespace: Namespace, at: String, most: usize) -> Result<Vec<String>, Failure>;

    /// Returns what is known of the files in the items with these keys, in exactly this namespace, without reading more
    /// than it has to. Items that are no files are left out, and so are those that would take too much reading.
    ///
    /// # Errors
    /// When the Store cannot be read.
    async fn file_facts(&self, namespace: Namespace, keys: Vec<String>)
    -> Result<BTreeMap<String, FileFacts>, Failure>;

    /// Puts `after` in the place of the item at this address, at once, if the value of the item is still `before`.
    /// `None` means that there is no item. Returns whether it was.
    ///
    /// # Errors
    /// When the item is invalid, or the Store or its embedding model fails.
    async fn replace(
        &self,
        address: ItemAddress,
        before: Option<Map<String, Value>>,
        after: Option<NewItem>,
    ) -> Result<bool, Failure>;
}

/// An in-memory Store for tests. Items never expire, and searches ignore the query text.
#[cfg(test)]
#[derive(Debug, Clone, Default)]
pub(crate) struct InMemoryItems(std::sync::Arc<std::sync::Mutex<Vec<Item>>>);

#[cfg(test)]
impl InMemoryItems {
    /// Applies a change.
    pub(crate) fn apply(&self, change: &crate::domain::item::ItemChange) {
        use crate::domain::item::ItemChange;
        use crate::domain::time::Timestamp;
        let mut items = self.0.lock().expect("the lock is never poisoned");
        let (ItemChange::Put(PreparedItem { address, .. }) | ItemChange::Delete(address)) = change;
        items.retain(|item| item.address != *address);
        if let ItemChange::Put(PreparedItem { address, value, .. }) = change {
            let address = address.clone();
            let value = value.clone();
            let at = Timestamp(0);
            items.push(Item {
                address,
                value,
                expires_at: None,
                created_at: at,
                updated_at: at,
            });
        }
    }
}

#[cfg(test)]
#[async_trait]
impl Items for InMemoryItems {
    async fn get(&self, address: ItemAddress) -> Result<Option<Item>, Failure> {
        Ok(self
            .0
            .lock()
            .expect("the lock is never poisoned")
            .iter()
            .find(|item| item.address == address)
            .cloned())
    }

    async fn search(&self, inquiry: ItemQuery) -> Result<Vec<FoundItem>, Failure> {
        let prefix = inquiry.wanted.prefix;
        let items = self.0.lock().expect("the lock is never poisoned");
        let within = items
            .iter()
            .filter(|item| item.address.namespace.labels().starts_with(prefix.labels()));
        Ok(within
            .map(|item| FoundItem {
                item: item.clone(),
                score: None,
            })
            .collect())
    }

    async fn draft(&self, item: NewItem) -> Result<PreparedItem, Failure> {
        PreparedItem::new(item.address, item.value, None)
            .map_err(|error| Failure::new("InvalidItemError", error.to_string()))
    }

    async fn keys(&self, namespace: Namespace, at: String, most: usize) -> Result<Vec<String>, Failure> {
        let items = self.0.lock().expect("the lock is never poisoned");
        let within = items.iter().filter(|item| item.address.namespace == namespace);
        let keys = within.map(|item| item.address.key.clone());
        let mut keys: Vec<String> = keys
            .filter(|key| *key == at || crate::domain::path::below(key, &at).is_some())
            .collect();
        keys.sort();
        keys.truncate(most);
        Ok(keys)
    }

    async fn file_facts(
        &self,
        namespace: Namespace,
        keys: Vec<String>,
    ) -> Result<BTreeMap<String, FileFacts>, Failure> {
        use crate::domain::state::File;
        let items = self.0.lock().expect("the lock is never poisoned");
        let wanted = items
            .iter()
            .filter(|item| item.address.namespace == namespace && keys.contains(&item.address.key));
        let facts = |item: &Item| Some((item.address.key.clone(), File::from_item(&item.value)?.facts()));
        Ok(wanted.filter_map(facts).collect())
    }

    async fn replace(
        &self,
        address: ItemAddress,
        before: Option<Map<String, Value>>,
        after: Option<NewItem>,
    ) -> Result<bool, Failure> {
        use crate::domain::item::ItemChange;
        let there = self.get(address.clone()).await?.map(|item| item.value);
        if there != before {
            return Ok(false);
        }
        match after {
            Some(item) => self.apply(&ItemChange::Put(self.draft(item).await?)),
            None => self.apply(&ItemChange::Delete(address)),
        }
        Ok(true)
    }
}
