//! The promises of the fuzz targets, for the inputs in `fuzz/corpus` and for many that are made of them.

use std::fs;
use std::panic::catch_unwind;
use std::path::Path;
use std::time::{Duration, Instant};

use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};

#[path = "../../../fuzz/src/lib.rs"]
#[expect(unreachable_pub, reason = "it is also a library of its own")]
mod targets;

/// The number of inputs that are made for each target.
const INPUTS: usize = 20_000;
/// The maximum length of an input, in bytes.
const LONGEST: usize = 2_000;
/// The time after which an input is taken for one that never ends.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes that mean something to one of the parsers.
const TOKENS: [&[u8]; 24] = [
    b"---\n",
    b"\n",
    b"\r",
    b"\0",
    b": ",
    b"- ",
    b"&a ",
    b"*a",
    b"{",
    b"}",
    b",",
    b"[",
    b"]",
    b"**",
    b"/",
    b"..",
    b"\\",
    b"\"",
    b"data: ",
    b"id: ",
    b"{\"type\":\"ai\",\"content\":\"\",\"tool_calls\":[]},",
    b"\xef\xbb\xbf",
    b"\xff",
    b"18446744073709551616",
];

/// Makes inputs out of others, the same ones in each run of the test.
struct Mutator {
    random: TestRng,
    seeds: Vec<Vec<u8>>,
}

impl Mutator {
    /// Starts with the inputs in the folder of a target.
    fn new(target: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
        let mut files: Vec<_> = fs::read_dir(&folder)
            .unwrap()
            .map(|file| file.unwrap().path())
            .collect();
        files.sort();
        assert!(files.len() >= 3, "{target} has too few inputs to start with");
        Self {
            random: TestRng::deterministic_rng(RngAlgorithm::ChaCha),
            seeds: files.iter().map(|file| fs::read(file).unwrap()).collect(),
        }
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.random.next_u64() % u64::try_from(end.max(1)).unwrap()).unwrap()
    }

    /// Makes an input.
    fn input(&mut self) -> Vec<u8> {
        let at = self.below(self.seeds.len());
        let mut input = self.seeds[at].clone();
        for _ in 0..=self.below(8) {
            self.change(&mut input);
        }
        input.truncate(LONGEST);
        input
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let from = self.below(input.len() + 1);
        let to = (from + self.below(16)).min(input.len());
        match self.below(5) {
            0 => {
                input.drain(from..to);
            }
            1 => {
                let token = TOKENS[self.below(TOKENS.len())];
                input.splice(from..from, token.iter().copied());
            }
            2 => {
                let part = input[from..to].repeat(1 + self.below(20));
                input.splice(from..to, part);
            }
            3 => {
                let other = self.below(self.seeds.len());
                let start = self.below(self.seeds[other].len());
                let part = self.seeds[other][start..].to_vec();
                input.splice(from..to, part);
            }
            _ => {
                let byte = self.below(256);
                if let Some(place) = input.get_mut(from) {
                    *place = u8::try_from(byte).unwrap();
                }
            }
        }
    }
}

/// Asks a target with the inputs of its folder, and with those made of them.
fn ask(target: &str, holds: fn(&[u8])) {
    let mut mutator = Mutator::new(target);
    for seed in mutator.seeds.clone() {
        check(holds, &seed);
    }
    for _ in 0..INPUTS {
        let input = mutator.input();
        check(holds, &input);
    }
}

fn check(holds: fn(&[u8]), input: &[u8]) {
    let start = Instant::now();
    let outcome = catch_unwind(|| holds(input));
    assert!(outcome.is_ok(), "for b\"{}\"", input.escape_ascii());
    assert!(start.elapsed() < PATIENCE, "slow for b\"{}\"", input.escape_ascii());
}

#[test]
fn any_text_is_taken_apart_at_its_front_matter() {
    ask("front_matter", targets::front_matter);
}

#[test]
fn any_pattern_is_compiled_or_refused() {
    ask("patterns", targets::patterns);
}

#[test]
fn any_edit_replaces_what_it_says_or_nothing() {
    ask("edit", targets::edit);
}

#[test]
fn any_conversation_can_be_repaired() {
    ask("message_repair", targets::message_repair);
}

#[test]
fn any_stream_of_events_is_read_the_same_in_all_pieces() {
    ask("server_sent_events", targets::server_sent_events);
}
