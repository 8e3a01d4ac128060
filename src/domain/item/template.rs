//! Namespace templates: namespaces with placeholders that each run fills.

use std::fmt;

use super::{ItemError, Namespace, RESERVED_ROOT, check_label};
use crate::domain::Invalid;

/// A namespace whose labels may contain placeholders, written as `{name}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceTemplate(Vec<Vec<Piece>>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    Gap(String),
}

/// The error for a template that a run cannot fill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TemplateError {
    /// The run has no value for this name, or none that fits into a label.
    Missing(String),
    /// The filled template is an invalid namespace.
    Wrong(ItemError),
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(name) => write!(f, "the context of the run has no `{name}`"),
            Self::Wrong(error) => error.fmt(f),
        }
    }
}

impl NamespaceTemplate {
    /// Parses labels such as `memories`, `{user_id}` or `user-{user_id}`.
    ///
    /// # Errors
    /// Returns each invalid label with its index; the index is none for an error about all labels.
    pub fn read(labels: &[String]) -> Result<Self, Vec<(Option<usize>, String)>> {
        let mut wrong = vec![];
        let mut template = vec![];
        for (at, label) in labels.iter().enumerate() {
            match pieces(label) {
                Ok(pieces) => template.push(pieces),
                Err(reason) => wrong.push((Some(at), reason)),
            }
        }
        match labels.first().map(String::as_str) {
            None => wrong.push((None, "must have at least one label".to_owned())),
            Some(RESERVED_ROOT) => wrong.push((Some(0), format!("must not be `{RESERVED_ROOT}`"))),
            Some(_) => {}
        }
        if let Err(Invalid { reason, .. }) = Namespace::prefix("", vec!["x".to_owned(); labels.len()]) {
            wrong.push((None, reason));
        }
        if wrong.is_empty() {
            Ok(Self(template))
        } else {
            Err(wrong)
        }
    }

    /// Returns the namespace, with the placeholders replaced by the values of `known`. A period or a percent sign in a
    /// value is written as `%2E` or `%25`, so that a value never leaves its label and different values never yield the
    /// same label.
    ///
    /// # Errors
    /// See [`TemplateError`].
    pub fn fill(&self, known: impl Fn(&str) -> Option<String>) -> Result<Namespace, TemplateError> {
        let mut labels = vec![];
        for pieces in &self.0 {
            let mut label = String::new();
            for piece in pieces {
                match piece {
                    Piece::Text(text) => label.push_str(text),
                    Piece::Gap(name) => {
                        let text = known(name).filter(|text| !text.is_empty());
                        let text = text.ok_or_else(|| TemplateError::Missing(name.clone()))?;
                        label.push_str(&text.replace('%', "%25").replace('.', "%2E"));
                    }
                }
            }
            labels.push(label);
        }
        Namespace::of_item(labels).map_err(TemplateError::Wrong)
    }
}

fn pieces(label: &str) -> Result<Vec<Piece>, String> {
    check_label(label)?;
    let wrong =
        || format!("`{label}` must be a text with placeholders such as `{{name}}` for values of the run's context");
    let mut pieces = vec![];
    let mut rest = label;
    while let Some((text, open)) = rest.split_once('{') {
        let (name, after) = open.split_once('}').ok_or_else(wrong)?;
        let is_name = !name.is_empty()
            && name
                .chars()
                .all(|letter| letter.is_alphanumeric() || "_-".contains(letter));
        if !is_name || text.contains('}') {
            return Err(wrong());
        }
        pieces.extend((!text.is_empty()).then(|| Piece::Text(text.to_owned())));
        pieces.push(Piece::Gap(name.to_owned()));
        rest = after;
    }
    if rest.contains('}') {
        return Err(wrong());
    }
    pieces.extend((!rest.is_empty()).then(|| Piece::Text(rest.to_owned())));
    Ok(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(labels: &[&str], user: &str) -> Result<Vec<String>, String> {
        let labels: Vec<String> = labels.iter().map(|label| (*label).to_owned()).collect();
        let template = NamespaceTemplate::read(&labels).map_err(|wrong| format!("{wrong:?}"))?;
        let namespace = template.fill(|name| (name == "user").then(|| user.to_owned()));
        namespace
            .map(|namespace| namespace.labels().to_vec())
            .map_err(|unfilled| unfilled.to_string())
    }

    #[test]
    fn a_filled_placeholder_stays_within_its_label() {
        assert_eq!(
            filled(&["memories", "u-{user}-{user}"], "al"),
            Ok(vec!["memories".into(), "u-al-al".into()])
        );
        assert_eq!(
            filled(&["m", "{user}"], "al@x.org").map(|labels| labels[1].clone()),
            Ok("al@x%2Eorg".to_owned())
        );
        assert_eq!(
            filled(&["m", "{user}"], "al@x%2Eorg").map(|labels| labels[1].clone()),
            Ok("al@x%252Eorg".to_owned())
        );
    }

    #[test]
    fn the_error_names_the_missing_placeholder() {
        assert_eq!(
            filled(&["{team}"], "al"),
            Err("the context of the run has no `team`".to_owned())
        );
        assert_eq!(
            filled(&["{user}"], ""),
            Err("the context of the run has no `user`".to_owned())
        );
        assert!(filled(&["{user}"], "langgraph").is_err_and(|text| text.starts_with("Root label")));
    }

    #[test]
    fn invalid_templates_are_refused() {
        for wrong in [
            &[][..],
            &["a.b"],
            &[""],
            &["{"],
            &["}"],
            &["{a b}"],
            &["{}"],
            &["a}{b}"],
            &["langgraph"],
            &["x"; 40],
        ] {
            assert!(filled(wrong, "al").is_err(), "{wrong:?}");
        }
    }
}
