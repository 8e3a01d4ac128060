//! Checks namespaces of the Store, whose labels may have placeholders.

use super::diagnostic::{Diagnostic, FieldPath};
use crate::domain::item::template::NamespaceTemplate;

/// Checks the labels of a namespace, which are the list in `field`.
pub(super) fn check_namespace(field: &FieldPath, labels: &[String]) -> Vec<Diagnostic> {
    let wrong = NamespaceTemplate::read(labels).err().unwrap_or_default();
    let finding = |(at, reason): (Option<usize>, String)| {
        let place = at.map_or_else(|| field.clone(), |at| field.then(at));
        Diagnostic::error(place, reason)
    };
    wrong.into_iter().map(finding).collect()
}
