//! The filter of a subscription: channels and agents.

use serde_json::Value;

use crate::domain::visibility::Visibility;

/// The channels in the order in which errors list them.
const CHANNELS: [&str; 9] = [
    "values",
    "updates",
    "messages",
    "tools",
    "lifecycle",
    "input",
    "checkpoints",
    "tasks",
    "custom",
];
/// The prefix of a channel for custom events of one name.
const CUSTOM_PREFIX: &str = "custom:";

/// The maximum length of a filter's lists.
const MAX_LIST: usize = 256;

/// A channel of the thread's stream. All but `input` are also the `method` of their events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channel {
    /// The whole state after each step that changed it.
    Values,
    /// The writes of each step.
    Updates,
    /// Messages, block by block.
    Messages,
    /// The start and end of tool calls.
    Tools,
    /// The start and end of runs and subagents.
    Lifecycle,
    /// Interrupts.
    Input,
    /// Checkpoints.
    Checkpoints,
    /// The start and end of tasks.
    Tasks,
    /// Custom events of tools and middleware.
    Custom,
}

impl Channel {
    /// Returns true if the channel includes an agent of this visibility. The other channels reveal its state or its
    /// messages.
    pub fn shows(self, visibility: Visibility) -> bool {
        match self {
            Self::Lifecycle | Self::Input => visibility >= Visibility::Status,
            Self::Tools | Self::Updates => visibility >= Visibility::ToolsOnly,
            Self::Values | Self::Messages | Self::Checkpoints | Self::Tasks | Self::Custom => {
                visibility == Visibility::Full
            }
        }
    }

    /// The `method` of its events.
    pub fn method(self) -> &'static str {
        match self {
            Self::Input => "input.requested",
            Self::Values => "values",
            Self::Updates => "updates",
            Self::Messages => "messages",
            Self::Tools => "tools",
            Self::Lifecycle => "lifecycle",
            Self::Checkpoints => "checkpoints",
            Self::Tasks => "tasks",
            Self::Custom => "custom",
        }
    }

    fn bit(self) -> u16 {
        1 << self as u16
    }
}

/// The filter of one subscription.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Filter {
    channels: u16,
    /// The names of custom events, if not all are included.
    custom_names: Vec<String>,
    /// The namespaces whose agents, and those below them, are included; all agents when empty.
    namespaces: Vec<Vec<String>>,
    /// The maximum depth below the namespaces.
    depth: Option<usize>,
}

impl Filter {
    /// Reads `channels`, `namespaces` and `depth` of a request.
    ///
    /// # Errors
    /// Names the allowed channels. A malformed namespace or depth is ignored, as in the LangGraph Platform.
    pub fn read(params: &Value) -> Result<Self, String> {
        let channels = params
            .get("channels")
            .and_then(Value::as_array)
            .filter(|channels| !channels.is_empty());
        let channels = channels.ok_or("channels is required and must be a non-empty array")?;
        if channels.len() > MAX_LIST {
            return Err(format!("channels has more than {MAX_LIST} entries"));
        }
        let mut filter = Self {
            namespaces: namespaces(params),
            depth: depth(params),
            ..Self::default()
        };
        let unknown: Vec<String> = channels
            .iter()
            .filter(|channel| !channel.as_str().is_some_and(|word| filter.add(word)))
            .map(|channel| channel.as_str().map_or_else(|| channel.to_string(), str::to_owned))
            .collect();
        if unknown.is_empty() {
            return Ok(filter);
        }
        let unknown = unknown.join(", ");
        let allowed = CHANNELS.join(", ");
        Err(format!(
            "channels contains unsupported entries: {unknown}. Allowed: {allowed}, or any `custom:<name>`."
        ))
    }

    /// Adds a channel. False if it does not exist.
    fn add(&mut self, word: &str) -> bool {
        if let Some(name) = word.strip_prefix(CUSTOM_PREFIX).filter(|name| !name.is_empty()) {
            self.custom_names.push(name.to_owned());
            return true;
        }
        let at = CHANNELS.iter().position(|channel| *channel == word);
        self.channels |= at.map_or(0, |at| 1 << at);
        at.is_some()
    }

    /// Returns true if the filter includes an event of `channel` about the agent at `namespace`; `name` is the name of
    /// a custom event.
    pub fn wants(&self, channel: Channel, namespace: &[String], name: Option<&str>) -> bool {
        let is_named =
            || channel == Channel::Custom && name.is_some_and(|name| self.custom_names.iter().any(|n| n == name));
        (self.has(channel) || is_named()) && self.covers(namespace)
    }

    /// Returns true if the filter includes the channel for any agent.
    pub fn has(&self, channel: Channel) -> bool {
        self.channels & channel.bit() != 0
    }

    /// Returns the namespaces of those subagents of the main agent that the filter names one by one: `tools:<task>`.
    pub fn subagents(&self) -> impl Iterator<Item = &String> {
        let first = self.namespaces.iter().filter_map(|namespace| namespace.first());
        first.filter(|segment| segment.contains(':'))
    }

    fn covers(&self, namespace: &[String]) -> bool {
        self.namespaces.is_empty() || self.namespaces.iter().any(|source| self.is_below(source, namespace))
    }

    fn is_below(&self, source: &[String], namespace: &[String]) -> bool {
        namespace.len() >= source.len()
            && source
                .iter()
                .zip(namespace)
                .all(|(pattern, segment)| is_segment(pattern, segment))
            && self.depth.is_none_or(|depth| namespace.len() - source.len() <= depth)
    }
}

/// Returns true if a segment matches: the same segment, or any of that name.
fn is_segment(pattern: &str, segment: &str) -> bool {
    pattern == segment || !pattern.contains(':') && segment.split(':').next() == Some(pattern)
}

fn namespaces(params: &Value) -> Vec<Vec<String>> {
    let list = params.get("namespaces").and_then(Value::as_array);
    let source = |source: &Value| -> Option<Vec<String>> {
        let segments = source.as_array()?;
        segments
            .iter()
            .map(|segment| segment.as_str().map(str::to_owned))
            .collect()
    };
    let namespaces = list
        .filter(|list| list.len() <= MAX_LIST)
        .map(|list| list.iter().map(source).collect());
    namespaces.unwrap_or_else(|| Some(vec![])).unwrap_or_default()
}

fn depth(params: &Value) -> Option<usize> {
    usize::try_from(whole_number(params, "depth")?).ok()
}

/// The value of a field if it is a whole number, 0 or more.
pub fn whole_number(params: &Value, field: &str) -> Option<i64> {
    params.get(field)?.as_i64().filter(|number| *number >= 0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(segments: &[&str]) -> Vec<String> {
        segments.iter().map(|segment| (*segment).to_owned()).collect()
    }

    #[test]
    fn a_channel_is_the_bit_of_its_word() {
        let all = [
            Channel::Values,
            Channel::Updates,
            Channel::Messages,
            Channel::Tools,
            Channel::Lifecycle,
            Channel::Input,
            Channel::Checkpoints,
            Channel::Tasks,
            Channel::Custom,
        ];
        for (channel, word) in all.into_iter().zip(CHANNELS) {
            let filter = Filter::read(&json!({"channels": [word]})).unwrap();
            assert!(
                all.iter().all(|other| filter.has(*other) == (*other == channel)),
                "{word}"
            );
        }
    }

    #[test]
    fn an_unknown_channel_is_refused_and_the_known_ones_are_listed() {
        let error = Filter::read(&json!({"channels": ["values", "debug", 7, "custom:"]})).unwrap_err();
        assert!(
            error.starts_with("channels contains unsupported entries: debug, 7, custom:. Allowed: values, updates")
        );
        for none in [json!({}), json!({"channels": []}), json!({"channels": "values"})] {
            assert_eq!(
                Filter::read(&none).unwrap_err(),
                "channels is required and must be a non-empty array"
            );
        }
    }

    #[test]
    fn a_namespace_matches_literally_or_by_name() {
        let filter = |namespaces: Value, depth: Value| {
            Filter::read(&json!({"channels": ["values"], "namespaces": namespaces, "depth": depth})).unwrap()
        };
        let wants = |filter: &Filter, source: &[&str]| filter.wants(Channel::Values, &at(source), None);
        let by_name = filter(json!([["tools"]]), Value::Null);
        assert!(wants(&by_name, &["tools:1"]) && wants(&by_name, &["tools:1", "tools:2"]) && !wants(&by_name, &[]));
        let literal = filter(json!([["tools:1"]]), json!(0));
        assert!(wants(&literal, &["tools:1"]));
        assert!(!wants(&literal, &["tools:2"]) && !wants(&literal, &["tools:1", "tools:2"]));
        let root = filter(json!([[]]), json!(1));
        assert!(wants(&root, &[]) && wants(&root, &["tools:1"]) && !wants(&root, &["tools:1", "tools:2"]));
    }

    #[test]
    fn subagents_are_those_that_are_named_one_by_one() {
        let params =
            json!({"channels": ["values"], "namespaces": [[], ["tools"], ["tools:1", "tools:2"], ["tools:3"]]});
        let filter = Filter::read(&params).unwrap();
        assert_eq!(filter.subagents().collect::<Vec<_>>(), ["tools:1", "tools:3"]);
    }

    #[test]
    fn malformed_conditions_are_ignored() {
        for params in [
            json!({"channels": ["values"], "namespaces": [["a"], 7]}),
            json!({"channels": ["values"], "namespaces": "a"}),
            json!({"channels": ["values"], "depth": 0}),
            json!({"channels": ["values"], "namespaces": [[]], "depth": true}),
        ] {
            let filter = Filter::read(&params).unwrap();
            assert!(
                filter.wants(Channel::Values, &at(&["tools:1", "tools:2"]), None),
                "{params}"
            );
        }
    }

    #[test]
    fn custom_events_are_included_all_or_by_name() {
        let named = Filter::read(&json!({"channels": ["custom:progress"]})).unwrap();
        assert!(named.wants(Channel::Custom, &[], Some("progress")));
        assert!(!named.wants(Channel::Custom, &[], Some("other")) && !named.wants(Channel::Custom, &[], None));
        let all = Filter::read(&json!({"channels": ["custom"]})).unwrap();
        assert!(all.wants(Channel::Custom, &[], None) && all.wants(Channel::Custom, &[], Some("progress")));
    }

    #[test]
    fn only_whole_numbers_count() {
        let params = json!({"a": 3, "b": true, "c": -1, "d": 1.5, "e": "3"});
        let read = |field: &str| whole_number(&params, field);
        assert_eq!(
            [read("a"), read("b"), read("c"), read("d"), read("e"), read("f")],
            [Some(3), None, None, None, None, None]
        );
    }
}
