//! Unique ids for the calls of one answer, for providers that use an id twice.
//!
//! Results are matched with calls by id, so two calls with the same id could not be answered. The second one gets a
//! number appended to its id, both in the streamed pieces and in the complete answer.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::domain::message::{Message, Role};

/// The call ids that one answer has used.
#[derive(Default)]
pub struct CallIdAllocator {
    used: HashMap<String, u32>,
    /// The ids assigned to the calls in the pieces, by index.
    by_index: HashMap<usize, String>,
}

impl CallIdAllocator {
    /// Returns the unique id of call `index`, for a piece that arrived with `id`.
    pub fn chunk_id(&mut self, index: usize, id: Option<String>) -> Option<String> {
        let id = id?;
        if let Some(known) = self.by_index.get(&index) {
            return Some(known.clone());
        }
        let given = self.reserve(&id);
        self.by_index.insert(index, given.clone());
        Some(given)
    }

    /// Makes the ids of all calls of a complete answer unique.
    pub fn make_unique(message: &mut Message) {
        let mut ids = Self::default();
        if let Role::Ai {
            tool_calls,
            invalid_tool_calls,
            ..
        } = &mut message.role
        {
            for call in tool_calls {
                call.id = ids.reserve(&call.id);
            }
            for id in invalid_tool_calls.iter_mut().filter_map(|call| call.id.as_mut()) {
                *id = ids.reserve(id);
            }
        }
    }

    fn reserve(&mut self, id: &str) -> String {
        let mut given = id.to_owned();
        loop {
            match self.used.entry(given) {
                Entry::Vacant(free) => {
                    let given = free.key().clone();
                    free.insert(1);
                    return given;
                }
                Entry::Occupied(mut taken) => {
                    *taken.get_mut() += 1;
                    given = format!("{}-{}", taken.key(), taken.get());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;
    use crate::domain::message::ToolCall;

    #[test]
    fn calls_with_one_id_get_the_same_unique_ids_in_pieces_and_in_the_whole_answer() {
        let given = ["a", "b", "a", "a-2", "a", "b"];
        let expected = ["a", "b", "a-2", "a-2-2", "a-3", "b-2"];
        let mut ids = CallIdAllocator::default();
        let pieces: Vec<_> = (0..)
            .zip(given)
            .filter_map(|(at, id)| ids.chunk_id(at, Some(id.to_owned())))
            .collect();
        assert_eq!(pieces, expected);
        assert_eq!(ids.chunk_id(2, Some("a".to_owned())), Some("a-2".to_owned()));
        assert_eq!(ids.chunk_id(2, None), None);
        let mut message = Message::ai("");
        let calls = given.map(|id| ToolCall::new(id, "t", Map::new())).to_vec();
        message.role = Role::Ai {
            tool_calls: calls,
            invalid_tool_calls: vec![],
            usage_metadata: None,
        };
        CallIdAllocator::make_unique(&mut message);
        assert_eq!(
            message
                .tool_calls()
                .iter()
                .map(|call| call.id.as_str())
                .collect::<Vec<_>>(),
            expected
        );
    }
}
