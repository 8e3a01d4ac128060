//! The Store as tools see it. They read at once; what they write is part of their answer, and is stored in the same
//! transaction as that answer: once, however often the server dies on the way.

use async_trait::async_trait;

use crate::domain::item::{FoundItem, Inquiry, Item, ItemAddress, ItemDraft, ItemWish};
use crate::domain::machine::Failure;

/// Reads the Store, and makes items ready to be written.
#[async_trait]
pub trait Items: Send + Sync {
    /// The item at this address.
    ///
    /// # Errors
    /// When the Store does not answer.
    async fn get(&self, address: ItemAddress) -> Result<Option<Item>, Failure>;

    /// The items that are wanted, the closest first if something was asked in words.
    ///
    /// # Errors
    /// When the question makes no sense, or the Store or its embedding model does not answer.
    async fn search(&self, inquiry: Inquiry) -> Result<Vec<FoundItem>, Failure>;

    /// Makes an item ready to be written, by a tool that puts it into [`Answer::changes`](crate::domain::call::Answer).
    ///
    /// # Errors
    /// When there can be no such item, or the embedding model does not answer.
    async fn draft(&self, wish: ItemWish) -> Result<ItemDraft, Failure>;
}

/// A Store in memory, for tests: what was put into it is there for ever and is not searched by meaning.
#[cfg(test)]
#[derive(Debug, Clone, Default)]
pub(crate) struct ItemsInMemory(std::sync::Arc<std::sync::Mutex<Vec<Item>>>);

#[cfg(test)]
impl ItemsInMemory {
    /// Carries out a change.
    pub(crate) fn apply(&self, change: &crate::domain::item::ItemChange) {
        use crate::domain::item::ItemChange;
        use crate::domain::time::Timestamp;
        let mut items = self.0.lock().expect("nobody panics here");
        let (ItemChange::Put(ItemDraft { address, .. }) | ItemChange::Delete(address)) = change;
        items.retain(|item| item.address != *address);
        if let ItemChange::Put(ItemDraft { address, value, .. }) = change {
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
impl Items for ItemsInMemory {
    async fn get(&self, address: ItemAddress) -> Result<Option<Item>, Failure> {
        Ok(self
            .0
            .lock()
            .expect("nobody panics here")
            .iter()
            .find(|item| item.address == address)
            .cloned())
    }

    async fn search(&self, inquiry: Inquiry) -> Result<Vec<FoundItem>, Failure> {
        let prefix = inquiry.wanted.prefix;
        let items = self.0.lock().expect("nobody panics here");
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

    async fn draft(&self, wish: ItemWish) -> Result<ItemDraft, Failure> {
        ItemDraft::new(wish.address, wish.value, None)
            .map_err(|error| Failure::new("InvalidItemError", error.to_string()))
    }
}
