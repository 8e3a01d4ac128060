//! Items of the Store on the wire.

use serde::{Deserialize, Deserializer, Serialize};
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

/// An item to be remembered, instead of whatever is there.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ItemPut {
    /// Where it lies: labels, outermost first, without periods.
    #[schema(min_items = 1, max_items = 32)]
    pub namespace: Vec<String>,
    /// Its key there.
    #[schema(min_length = 1, max_length = 512)]
    pub key: String,
    /// What it says.
    #[schema(value_type = Object)]
    pub value: Object,
    /// What of it can be found by its meaning: the configured fields if absent, `false` for nothing, or a list of fields.
    pub index: Option<ItemIndex>,
    /// How many minutes it stays; as configured if absent, for ever if null.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<f64>, exclusive_minimum = 0.0)]
    pub ttl: Option<Option<f64>>,
}

/// What of an item can be found by its meaning.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(untagged, expecting = "must be false or a list of fields")]
pub enum ItemIndex {
    /// The configured fields, or nothing.
    Switch(bool),
    /// These fields.
    Fields(Vec<String>),
}

/// Tells null from absent.
fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<f64>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

impl ItemPut {
    /// The item that is wished for.
    ///
    /// # Errors
    /// Names the field that cannot be.
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

/// An item to be forgotten.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ItemDelete {
    /// Where it lies.
    pub namespace: Vec<String>,
    /// Its key there.
    pub key: String,
}

impl ItemDelete {
    /// The item that is meant.
    ///
    /// # Errors
    /// Names the field that is none.
    pub fn check(self) -> Result<ItemAddress, Invalid> {
        ItemAddress::new(Namespace::prefix("namespace", self.namespace)?, self.key)
    }
}

/// Which items are wanted.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct ItemSearchBody {
    /// Where they lie: here, or anywhere below; anywhere, if empty.
    #[serde(default)]
    pub namespace_prefix: Option<Vec<String>>,
    /// What they say: `{"field": value}`, or `{"field": {"$gt": value}}` with `$eq`, `$ne`, `$gt`, `$gte`, `$lt`, `$lte`.
    #[schema(value_type = Option<Object>)]
    pub filter: Option<Object>,
    /// How many at most.
    #[schema(minimum = 1, maximum = 1000, default = 10)]
    pub limit: Option<i64>,
    /// How many to pass over.
    #[schema(minimum = 0, default = 0)]
    pub offset: Option<i64>,
    /// What they are about, in words; the closest come first. Without an index it is ignored.
    pub query: Option<String>,
    /// Whether those found stay longer for it; as configured if absent.
    pub refresh_ttl: Option<bool>,
}

impl ItemSearchBody {
    /// What is wanted.
    ///
    /// # Errors
    /// Names the field that makes no sense.
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

/// Which namespaces are wanted.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct NamespaceSearchBody {
    /// How they begin; `*` is any label.
    pub prefix: Option<Vec<String>>,
    /// How they end; `*` is any label.
    pub suffix: Option<Vec<String>>,
    /// How many labels are shown of each.
    #[schema(minimum = 1)]
    pub max_depth: Option<i64>,
    /// How many at most.
    #[schema(minimum = 1, maximum = 1000, default = 100)]
    pub limit: Option<i64>,
    /// How many to pass over.
    #[schema(minimum = 0, default = 0)]
    pub offset: Option<i64>,
}

impl NamespaceSearchBody {
    /// What is wanted.
    ///
    /// # Errors
    /// Names the field that makes no sense.
    pub fn check(self) -> Result<NamespaceSearch, ApiError> {
        let page = Page::checked(self.limit, self.offset, 100)?;
        let max_depth = match self.max_depth.map(usize::try_from) {
            None => None,
            // No namespace is deeper than the deepest.
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

/// An item.
#[derive(Debug, Serialize, ToSchema)]
pub struct ItemView {
    /// Where it lies.
    pub namespace: Vec<String>,
    /// Its key there.
    pub key: String,
    /// What it says.
    #[schema(value_type = Object)]
    pub value: Object,
    /// When it was first written.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// When it was last written.
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

/// An item that was found.
#[derive(Debug, Serialize, ToSchema)]
pub struct FoundItemView {
    /// The item.
    #[serde(flatten)]
    pub item: ItemView,
    /// How close it is to the query, from -1 to 1; null without one.
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

/// The items that were found.
#[derive(Debug, Serialize, ToSchema)]
pub struct FoundItems {
    /// In the order of their namespaces and keys, or the closest first.
    pub items: Vec<FoundItemView>,
}

/// The namespaces that were found.
#[derive(Debug, Serialize, ToSchema)]
pub struct FoundNamespaces {
    /// In order.
    pub namespaces: Vec<Vec<String>>,
}
