//! Items of the Store on the wire.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Object;
use crate::db::items::NamespaceSearch;
use crate::domain::Invalid;
use crate::domain::item::{
    self, FoundItem, Indexing, Item, ItemAddress, ItemError, ItemFilter, ItemLifetime, ItemQuery, ItemSearch,
    MAX_NAMESPACE_LABELS, Namespace, NewItem, TextPath,
};
use crate::http::error::ApiError;
use crate::http::extract::Page;

/// A request to store an item. An existing item is replaced.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ItemPut {
    /// The namespace: labels without periods, outermost first.
    #[schema(min_items = 1, max_items = 32)]
    pub namespace: Vec<String>,
    /// The key within the namespace.
    #[schema(min_length = 1, max_length = 512)]
    pub key: String,
    /// The value.
    #[schema(value_type = Object)]
    pub value: Object,
    /// The fields to index for semantic search: the configured fields if absent, `false` for none, or a list of fields.
    pub index: Option<ItemIndex>,
    /// The time to live in minutes; as configured if absent, unlimited if null.
    #[serde(default, deserialize_with = "super::read_nullable")]
    #[schema(value_type = Option<f64>, exclusive_minimum = 0.0)]
    pub ttl: Option<Option<f64>>,
}

/// The fields of an item to index for semantic search.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(untagged, expecting = "must be false or a list of fields")]
pub enum ItemIndex {
    /// `true` for the configured fields, `false` for none.
    Switch(bool),
    /// A list of fields.
    Fields(Vec<String>),
}

impl ItemPut {
    /// Validates the request.
    ///
    /// # Errors
    /// Names the invalid field.
    pub fn check(self) -> Result<NewItem, ItemError> {
        let address = ItemAddress::new(Namespace::of_item(self.namespace)?, self.key)?;
        let lifetime = match self.ttl {
            None => ItemLifetime::AsConfigured,
            Some(None) => ItemLifetime::Forever,
            Some(Some(minutes)) => ItemLifetime::For(item::ttl("ttl", minutes)?),
        };
        let indexing = match self.index {
            None | Some(ItemIndex::Switch(true)) => Indexing::AsConfigured,
            Some(ItemIndex::Switch(false)) => Indexing::Off,
            Some(ItemIndex::Fields(fields)) => Indexing::Fields(TextPath::read_all("index", &fields)?),
        };
        Ok(NewItem {
            address,
            value: self.value,
            lifetime,
            indexing,
        })
    }
}

/// A request to delete an item.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ItemDelete {
    /// The namespace.
    pub namespace: Vec<String>,
    /// The key within the namespace.
    pub key: String,
}

impl ItemDelete {
    /// Validates the request.
    ///
    /// # Errors
    /// Names the invalid field.
    pub fn check(self) -> Result<ItemAddress, Invalid> {
        ItemAddress::new(Namespace::prefix("namespace", self.namespace)?, self.key)
    }
}

/// A search for items.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct ItemSearchBody {
    /// The namespace prefix; empty for all namespaces.
    #[serde(default)]
    pub namespace_prefix: Option<Vec<String>>,
    /// A filter on the value: `{"field": value}`, or `{"field": {"$gt": value}}` with `$eq`, `$ne`, `$gt`, `$gte`,
    /// `$lt`, `$lte`.
    #[schema(value_type = Option<Object>)]
    pub filter: Option<Object>,
    /// The maximum number of items.
    #[schema(minimum = 1, maximum = 1000, default = 10)]
    pub limit: Option<i64>,
    /// The number of items to skip.
    #[schema(minimum = 0, default = 0)]
    pub offset: Option<i64>,
    /// The query of a semantic search; the best matches come first. Ignored without an index.
    pub query: Option<String>,
    /// True if the time to live of found items is renewed; as configured if absent.
    pub refresh_ttl: Option<bool>,
}

impl ItemSearchBody {
    /// Validates the search.
    ///
    /// # Errors
    /// Names the invalid field.
    pub fn check(self) -> Result<ItemQuery, ApiError> {
        let page = Page::checked(self.limit, self.offset, 10)?;
        let filter = self
            .filter
            .map(|filter| ItemFilter::read("filter", &filter))
            .transpose()?;
        let wanted = ItemSearch {
            prefix: Namespace::prefix("namespace_prefix", self.namespace_prefix.unwrap_or_default())?,
            filter: filter.unwrap_or_default(),
            limit: page.limit,
            offset: page.offset,
        };
        Ok(ItemQuery {
            wanted,
            query: self.query,
            refresh: self.refresh_ttl,
        })
    }
}

/// A search for namespaces.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct NamespaceSearchBody {
    /// The first labels; `*` matches any label.
    pub prefix: Option<Vec<String>>,
    /// The last labels; `*` matches any label.
    pub suffix: Option<Vec<String>>,
    /// The number of labels to which namespaces are shortened.
    #[schema(minimum = 1)]
    pub max_depth: Option<i64>,
    /// The maximum number of items.
    #[schema(minimum = 1, maximum = 1000, default = 100)]
    pub limit: Option<i64>,
    /// The number of items to skip.
    #[schema(minimum = 0, default = 0)]
    pub offset: Option<i64>,
}

impl NamespaceSearchBody {
    /// Validates the search.
    ///
    /// # Errors
    /// Names the invalid field.
    pub fn check(self) -> Result<NamespaceSearch, ApiError> {
        let page = Page::checked(self.limit, self.offset, 100)?;
        let max_depth = match self.max_depth.map(usize::try_from) {
            None => None,
            // Stored namespaces have at most this depth.
            Some(Ok(depth)) if depth > 0 => Some(depth.min(MAX_NAMESPACE_LABELS)),
            Some(_) => return Err(Invalid::new("max_depth", "must be a whole number of at least 1").into()),
        };
        Ok(NamespaceSearch {
            prefix: Namespace::prefix("prefix", self.prefix.unwrap_or_default())?,
            suffix: Namespace::prefix("suffix", self.suffix.unwrap_or_default())?,
            max_depth,
            limit: page.limit as usize,
            offset: page.offset as usize,
        })
    }
}

/// An item of the Store.
#[derive(Debug, Serialize, ToSchema)]
pub struct ItemView {
    /// The namespace.
    pub namespace: Vec<String>,
    /// The key within the namespace.
    pub key: String,
    /// The value.
    #[schema(value_type = Object)]
    pub value: Object,
    /// The time of creation.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// The time of the last write.
    #[schema(format = DateTime)]
    pub updated_at: String,
}

impl From<Item> for ItemView {
    fn from(item: Item) -> Self {
        Self {
            namespace: item.address.namespace.labels().to_vec(),
            key: item.address.key,
            value: item.value,
            created_at: item.created_at.to_string(),
            updated_at: item.updated_at.to_string(),
        }
    }
}

/// An item of a search result.
#[derive(Debug, Serialize, ToSchema)]
pub struct FoundItemView {
    /// The item.
    #[serde(flatten)]
    pub item: ItemView,
    /// The similarity to the query, from -1 to 1; null without a query.
    pub score: Option<f32>,
}

impl From<FoundItem> for FoundItemView {
    fn from(found: FoundItem) -> Self {
        Self {
            item: found.item.into(),
            score: found.score,
        }
    }
}

/// The result of a search for items.
#[derive(Debug, Serialize, ToSchema)]
pub struct FoundItems {
    /// The items, sorted by namespace and key, or by similarity.
    pub items: Vec<FoundItemView>,
}

/// The result of a search for namespaces.
#[derive(Debug, Serialize, ToSchema)]
pub struct FoundNamespaces {
    /// The namespaces in order.
    pub namespaces: Vec<Vec<String>>,
}
