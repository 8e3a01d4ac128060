//! Folds writes to a state. The result is that of repeated [`State::apply`], but made for thousands of writes: nothing
//! is copied, and messages are found by id in a hash map.

use crate::domain::message_index::MessageIndex;
use crate::domain::state::{State, Update};
use crate::domain::summarization;

/// A state under construction.
#[derive(Default)]
pub(super) struct StateFold {
    state: State,
    index: MessageIndex,
}

impl From<State> for StateFold {
    /// Starts with a state.
    fn from(state: State) -> Self {
        Self {
            state,
            index: MessageIndex::default(),
        }
    }
}

impl StateFold {
    /// Adds the writes of a step.
    pub(super) fn add(&mut self, writes: Vec<Update>) {
        for update in writes {
            self.index.put_all(&mut self.state.messages, &update.messages);
            for (path, file) in update.files {
                match file {
                    Some(file) => self.state.files.insert(path, file),
                    None => self.state.files.remove(&path),
                };
            }
            let has_summary = update.fields.contains_key(summarization::EVENT);
            self.state.write(update.fields, &update.rules);
            if has_summary && self.state.compress() {
                self.index = MessageIndex::default();
            }
        }
    }

    /// Returns the state so far.
    pub(super) fn state(&self) -> &State {
        &self.state
    }

    /// Returns the state.
    pub(super) fn finish(self) -> State {
        self.state
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};
    use uuid::Uuid;

    use super::*;
    use crate::db::states;
    use crate::domain::message::{Message, REMOVE_ALL, Role, ToolCall, ToolStatus};

    fn said(id: usize, text: &str) -> Update {
        let author = match id % 2 {
            0 => Message::human(text),
            _ => Message::ai(text),
        };
        Update::messages([author.with_id(format!("m{id}"))])
    }

    fn removed(id: &str) -> Update {
        Update::messages([Message::new(Role::Remove, "").with_id(id)])
    }

    fn summarized(last: usize) -> Update {
        summarized_until(&format!("m{last}"))
    }

    fn summarized_until(id: &str) -> Update {
        let event = json!({"last_message_id": id, "summary_message": {"type": "human", "content": "S"}});
        Update::field(summarization::EVENT, event)
    }

    /// An id as the server makes it, but always the same.
    fn id_of(what: &str, turn: usize) -> String {
        let name = format!("{what} {turn}");
        Uuid::new_v5(&Uuid::NAMESPACE_OID, name.as_bytes()).to_string()
    }

    fn id_of_answer(turn: usize) -> String {
        format!("lc_run--{}", id_of("answer", turn))
    }

    /// A turn with a call of a tool.
    fn turn(number: usize) -> Update {
        let call = ToolCall::new(format!("c{number}"), "lookup", Map::new());
        let result = Message::tool(&call, ToolStatus::Success, format!("found {number}"));
        Update::messages([
            Message::human(format!("question {number}")).with_id(id_of("question", number)),
            Message::calling([call]).with_id(format!("lc_run--{}", id_of("call", number))),
            result.with_id(id_of("result", number)),
            Message::ai(format!("answer {number}")).with_id(id_of_answer(number)),
        ])
    }

    /// The event of a summary after which the messages up to `until` have left, and the media of those up to `media`.
    fn left(last: usize, media: usize, until: usize) -> Update {
        let mut update = summarized(last);
        if let Some(event) = update.fields.get_mut(summarization::EVENT) {
            event["media_left_until"] = json!(format!("m{media}"));
            event["left_until"] = json!(format!("m{until}"));
        }
        update
    }

    #[test]
    fn a_fold_has_the_result_of_applying_the_writes_one_by_one() {
        let mut writes: Vec<Update> = (0..400).map(|id| said(id, "first")).collect();
        writes.extend([
            summarized(300),
            said(400, "first"),
            said(7, "second"),
            said(399, "second"),
        ]);
        let mut several = removed("m9");
        several.merge(removed("m380"));
        several.merge(said(7, "third"));
        several.merge(said(7, "second"));
        writes.extend([summarized(390), several, summarized(392), said(401, "first")]);
        writes.extend((402..700).map(|id| said(id, "first")));
        writes.extend([summarized(650), said(401, "second"), summarized(651), said(5, "third")]);
        let mut expected = State::default();
        let mut fold = StateFold::default();
        for update in writes {
            expected.apply(&update);
            fold.add(vec![update]);
            assert_eq!(fold.state().messages.earlier_len(), expected.messages.earlier_len());
        }
        assert_eq!(*fold.state(), expected);
        assert_eq!(expected.messages.len(), 698);
        let text_of = |id: &str| {
            let found = expected.messages.newest(|message| message.id.as_deref() == Some(id));
            found.map(|message| message.content.text())
        };
        assert_eq!(text_of("m7").as_deref(), Some("second"));
        assert_eq!(text_of("m401").as_deref(), Some("second"));
        assert_eq!(text_of("m9"), None);
        assert_eq!(text_of("m380"), None);
        expected.apply(&left(650, 600, 500));
        fold.add(vec![left(650, 600, 500), said(3, "late"), said(700, "new")]);
        expected.apply(&said(3, "late"));
        expected.apply(&said(700, "new"));
        assert_eq!(fold.state().messages.left_len(), expected.messages.left_len());
        assert_eq!(fold.state().messages.len(), 200);
        assert_eq!(*fold.state(), expected);
        let gone = Update::field(summarization::EVENT, Value::Null);
        for event in [summarized(650), summarized(40), summarized(650), gone] {
            expected.apply(&event);
            fold.add(vec![event, said(690, "second")]);
            expected.apply(&said(690, "second"));
            assert_eq!(fold.state().messages.earlier_len(), expected.messages.earlier_len());
            assert_eq!(*fold.state(), expected);
        }
        fold.add(vec![removed(REMOVE_ALL)]);
        assert!(fold.finish().messages.is_empty());
    }

    #[test]
    fn each_of_ten_thousand_turns_takes_the_same_few_bytes() {
        const TURNS: usize = 10_000;
        // Four messages, of which an id takes 20 bytes.
        const MOST: usize = 120;
        let mut fold = StateFold::default();
        let mut weights = vec![];
        for number in 1..=TURNS {
            fold.add(vec![turn(number)]);
            if number % 100 == 0 {
                fold.add(vec![summarized_until(&id_of_answer(number - 20))]);
                assert!(fold.state().messages.recent().len() < 100);
            }
            if number % (TURNS / 4) == 0 {
                weights.push(states::weight(fold.state()));
            }
        }
        let of_turn = weights.windows(2).map(|pair| (pair[1] - pair[0]) / (TURNS / 4));
        let of_turn: Vec<usize> = of_turn.collect();
        assert!(
            of_turn.iter().all(|bytes| *bytes <= MOST),
            "bytes of a turn: {of_turn:?}"
        );
        assert_eq!(fold.state().messages.len(), 4 * TURNS);
    }
}
