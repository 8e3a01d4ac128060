//! A parser for the text format of Prometheus, for clients that read metrics as JSON.

use std::collections::BTreeMap;

use serde::Serialize;

/// One sample.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sample {
    /// The name of the metric.
    pub name: String,
    /// The labels.
    pub labels: BTreeMap<String, String>,
    /// The value; none for NaN.
    pub value: Option<f64>,
}

/// Parses the samples of `text`.
pub fn samples(text: &str) -> Vec<Sample> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(sample)
        .collect()
}

fn sample(line: &str) -> Option<Sample> {
    let (name, value) = line.rsplit_once(' ')?;
    let value = value.parse().ok().filter(|value: &f64| value.is_finite());
    let (name, labels) = name.split_once('{').unwrap_or((name, ""));
    Some(Sample {
        name: name.to_owned(),
        labels: read_labels(labels),
        value,
    })
}

/// Parses labels: `a="1",b="2"}`.
fn read_labels(text: &str) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    let mut rest = text;
    while let Some((name, after)) = rest.split_once("=\"") {
        let mut value = String::new();
        let mut end = after.len();
        let mut escaped = false;
        for (at, letter) in after.char_indices() {
            match (escaped, letter) {
                (true, 'n') => value.push('\n'),
                (false, '"') => {
                    end = at;
                    break;
                }
                (false, '\\') => {}
                (true | false, _) => value.push(letter),
            }
            escaped = !escaped && letter == '\\';
        }
        labels.insert(name.trim_start_matches(',').to_owned(), value);
        rest = after.get(end + 1..).unwrap_or_default();
    }
    labels
}
