//! Room in the state of a thread: what leaves it, so that a conversation of any length fits.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use super::super::files::{common_result_path, first_part_path};
use super::{Conversation, FOLDER, newest_request};
use crate::definition::THREAD_FOLDERS;
use crate::domain::long_message::LongMessagePlace;
use crate::domain::message::Message;
use crate::domain::message_list::size_of_media;
use crate::domain::size::{self, SizeLimits};
use crate::domain::state::{File, FileWrites, State};
use crate::domain::state_size::StateSize;
use crate::domain::summarization::SummarizationEvent;

/// The part of the state that files which the server has made may take: one of this many. The oldest are deleted first.
const FILE_PARTS: usize = 4;
/// The part of the state that must be unsummarised messages before the conversation is summarised for the sake of room.
const UNSUMMARIZED_PARTS: usize = 4;
/// The part of the state that the newest messages may take which are kept when others are summarised.
const KEPT_PARTS: usize = 8;
/// The part of the state that messages must take to be worth a summary for the sake of room.
const WORTH_PARTS: usize = 16;
/// The part of the state that remains in use when messages leave it, so that the next compactions have room.
const LEFT_PARTS: usize = 4;

/// Returns whether the conversation has to be summarised because of its size: the state is more than half full, and a
/// large part of that is messages that no summary stands for. `size` is the size of the state.
pub(super) fn is_short(conversation: &Conversation<'_>, size: &StateSize) -> bool {
    let most = conversation.scope.sizes.state;
    let start = conversation.event.cutoff(conversation.messages);
    // The first condition is the cheapest one that is rarely met.
    size.exceeds(conversation.state, most / 2)
        && conversation.is_of_state
        && weight_of(conversation, &conversation.messages[start..]) >= most / UNSUMMARIZED_PARTS
}

/// Returns whether messages are large enough to be summarised for the sake of room.
pub(super) fn is_worth_it(conversation: &Conversation<'_>, messages: &[Arc<Message>]) -> bool {
    let most = conversation.scope.sizes.state;
    weight_of(conversation, messages) >= most / WORTH_PARTS || size::of_state(conversation.state) > most
}

/// Returns the largest size of the newest messages that are kept, in bytes.
pub(super) fn kept_bytes(conversation: &Conversation<'_>) -> usize {
    conversation.scope.sizes.state / KEPT_PARTS
}

/// Returns the largest size of a file with earlier messages, in bytes.
pub(super) fn file_bytes(sizes: SizeLimits) -> usize {
    sizes.file.min(sizes.state / FILE_PARTS / 2)
}

fn weight_of(conversation: &Conversation<'_>, messages: &[Arc<Message>]) -> usize {
    let messages = messages.iter();
    messages.map(|message| weight(conversation.state, message)).sum()
}

/// Returns what a message takes of a state, in bytes: its own size, and that of the file with its text if it is a long
/// result.
pub(super) fn weight(state: &State, message: &Message) -> usize {
    let files = result_files(state, message).into_iter();
    message.size() + files.map(|(_, file)| file.content.len()).sum::<usize>()
}

/// Returns the files with the text of a long result.
fn result_files<'s>(state: &'s State, message: &Message) -> Vec<(&'s String, &'s Arc<File>)> {
    let Some(call) = message.answers() else {
        return vec![];
    };
    let mut files = in_folder(state, &common_result_path(call));
    if !files.is_empty() {
        let notice = message.content.text();
        files.retain(|(path, _)| names(&notice, first_part_path(path)));
    }
    files
}

/// Says in the event of a compaction that writes `files` what leaves the state, if that would be more than half full: the
/// oldest media, and if these are not enough, the oldest messages. Only messages before the index `end` leave, for which
/// the summary stands.
pub(super) fn leave(event: &mut SummarizationEvent, conversation: &Conversation<'_>, end: usize, files: &FileWrites) {
    let Conversation { scope, state, .. } = conversation;
    let most = scope.sizes.state;
    let size = (size::of_state(state) + size_of_written(files)).saturating_sub(size_of_replaced(files, state));
    // Messages cannot make up for large files.
    let others = size.saturating_sub(state.messages.size());
    let bound = (most / 2).max(others + most / KEPT_PARTS).min(most);
    if !conversation.is_of_state || size <= bound {
        return;
    }
    let target = (most / LEFT_PARTS).max(others + most / WORTH_PARTS).min(most);
    let mut surplus = size.saturating_sub(target);
    let all = state.messages.all();
    let Some(summarized) = all.get(..conversation.earlier + end) else {
        return;
    };
    for message in summarized {
        if surplus == 0 {
            return;
        }
        let media = size_of_media(message);
        if media > 0 && message.id.is_some() {
            surplus = surplus.saturating_sub(media);
            event.media_left_until.clone_from(&message.id);
        }
    }
    if surplus == 0 {
        return;
    }
    // The state finds the end of the summary by its last message, and the open calls by the last answer.
    let answer = all.iter().rposition(|message| message.is_ai()).unwrap_or(0);
    let last = summarized.len().saturating_sub(1).min(answer);
    let mut count = 0;
    while count < last && (surplus > 0 || all[count].answers().is_some()) {
        let text = all[count].size().saturating_sub(size_of_media(&all[count]));
        surplus = surplus.saturating_sub(text);
        count += 1;
    }
    // A call stays with its last result.
    while count > 0 && all[count].answers().is_some() {
        count -= 1;
    }
    if let Some(at) = all[..count].iter().rposition(|message| message.id.is_some()) {
        event.left_until.clone_from(&all[at].id);
        event.left_messages = state.messages.left_len() + at + 1;
        event.left_request = newest_request(&all[..=at], conversation.left_request.as_ref());
    }
}

fn size_of_written(files: &FileWrites) -> usize {
    files.values().flatten().map(|file| file.content.len()).sum()
}

/// Returns the size of the files of a state that `files` deletes or replaces.
fn size_of_replaced(files: &FileWrites, state: &State) -> usize {
    let known = files.keys().filter_map(|path| state.files.get(path));
    known.map(|file| file.content.len()).sum()
}

/// Returns the deletions of files that the server has made, so that `more` bytes fit into their part of the state when the
/// messages in `range` are summarised. The oldest are deleted first: an agent deletes the files with its own earlier
/// messages, whose names begin with `own`, and before those the files of results that it does not read any more. The main
/// agent also deletes what its subagents have left, but a fork does not delete the files of results, which may be its caller's.
pub(super) fn room_for(conversation: &Conversation<'_>, own: &str, more: usize, range: Range<usize>) -> FileWrites {
    let Conversation { scope, state, .. } = conversation;
    let is_main = scope.subagent.is_none();
    let most = scope.sizes.state / FILE_PARTS;
    let all = format!("{FOLDER}/session_");
    let histories = in_folder(state, if is_main { all.as_str() } else { own });
    let others = THREAD_FOLDERS.iter().filter(|folder| **folder != FOLDER);
    let others = others.flat_map(|folder| in_folder(state, &format!("{folder}/")));
    let mut files: Vec<(&String, &Arc<File>)> = histories.into_iter().chain(others).collect();
    let mut sum = files.iter().map(|(_, file)| file.content.len()).sum::<usize>() + more;
    if sum <= most {
        return FileWrites::new();
    }
    let kept = conversation.messages[range.end..].iter();
    let kept: Vec<(Option<&str>, String)> = kept
        .map(|message| (message.id.as_deref(), message.content.text()))
        .collect();
    let older = conversation.messages[range].iter();
    let results: BTreeSet<&String> = older
        .flat_map(|message| result_files(state, message))
        .map(|(path, _)| path)
        .collect();
    let can_go = |path: &String| {
        let is_done = is_main || !state.is_fork() && results.contains(path);
        path.starts_with(&all) || is_done && !kept.iter().any(|(id, text)| is_about(path, *id, text))
    };
    files.sort_by_key(|&(path, file)| (path.starts_with(own), file.modified_at.as_deref(), path));
    let mut gone = FileWrites::new();
    for (path, file) in files {
        if sum <= most {
            break;
        }
        if can_go(path) {
            sum -= file.content.len();
            gone.insert(path.clone(), None);
        }
    }
    gone
}

fn in_folder<'s>(state: &'s State, start: &str) -> Vec<(&'s String, &'s Arc<File>)> {
    let files = state.files.range(start.to_owned()..);
    files.take_while(|(path, _)| path.starts_with(start)).collect()
}

/// Returns whether a file has the text of the message with this id and text, which names it or is shown shortened.
fn is_about(path: &str, id: Option<&str>, text: &str) -> bool {
    let is_long = id.is_some_and(|id| LongMessagePlace::may_be(path, id));
    is_long || names(text, first_part_path(path))
}

/// Returns whether a text has this path, and not only a longer one that begins with it: a number follows the path of the
/// result of a call whose id is used again.
fn names(text: &str, path: &str) -> bool {
    let goes_on = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
    let mut places = text.match_indices(path);
    places.any(|(at, _)| !text[at + path.len()..].starts_with(goes_on))
}
