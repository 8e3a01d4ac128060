//! A bound on the nesting of expressions, taken from the text before Cedar parses it.
//!
//! Cedar's parser and validator call themselves for each level of an expression, and a chain of operators such as
//! `a && b && c` nests as deeply as it is long. So a text that nests too deeply would exhaust the stack. The bound is never
//! lower than the nesting of what Cedar parses; it may be higher, as for `a && b + c`, where both operators count.

/// The maximum nesting of an expression.
pub(super) const MAX_NESTING: usize = 256;

/// The operators that are words.
const WORDS: [&str; 7] = ["if", "then", "else", "has", "like", "in", "is"];

/// The text between two brackets, so far.
#[derive(Debug, Clone, Copy, Default)]
struct Level {
    /// The nesting of the expressions before the last comma.
    before: usize,
    /// The operators between operands.
    operators: usize,
    /// The most that follows one another in one operand: accesses, calls, brackets and negations.
    longest: usize,
    /// The same of the last operand.
    operand: usize,
    /// The nesting between the brackets of an operand.
    inside: usize,
}

impl Level {
    fn depth(&self) -> usize {
        let last = self.operators + self.longest.max(self.operand) + self.inside;
        self.before.max(last)
    }

    fn reads_operator(&mut self) {
        self.operators += 1;
        self.longest = self.longest.max(self.operand);
        self.operand = 0;
    }

    fn reads_comma(&mut self) {
        *self = Self {
            before: self.depth(),
            ..Self::default()
        };
    }
}

/// Returns the place, in bytes, at which a text nests deeper than [`MAX_NESTING`], if it does.
pub(super) fn first_too_deep(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut open: Vec<Level> = vec![];
    let mut level = Level::default();
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let next = at + token_length(bytes.get(at..).unwrap_or_default());
        match byte {
            b'(' | b'[' | b'{' => {
                level.operand += 1;
                open.push(std::mem::take(&mut level));
            }
            b')' | b']' | b'}' => level = closed(level, &mut open),
            b',' => level.reads_comma(),
            b';' if open.is_empty() => level = Level::default(),
            b'.' => level.operand += 1,
            b'!' if next == at + 1 => level.operand += 1,
            b'&' | b'|' | b'=' | b'!' | b'<' | b'>' | b'+' | b'-' | b'*' | b'/' | b'%' if !is_comment(bytes, at) => {
                level.reads_operator();
            }
            _ if text.get(at..next).is_some_and(|word| WORDS.contains(&word)) => level.reads_operator(),
            _ => {}
        }
        if level.depth() > MAX_NESTING || open.len() > MAX_NESTING {
            return Some(at);
        }
        at = next;
    }
    // Brackets that are not closed are a mistake, which Cedar finds after reading what is in them.
    while !open.is_empty() {
        level = closed(level, &mut open);
    }
    (level.depth() > MAX_NESTING).then_some(text.len())
}

/// Returns the level around one that ends. A bracket too many ends nothing.
fn closed(inner: Level, open: &mut Vec<Level>) -> Level {
    match open.pop() {
        Some(outer) => Level {
            inside: outer.inside.max(inner.depth()),
            ..outer
        },
        None => inner,
    }
}

fn is_comment(bytes: &[u8], at: usize) -> bool {
    bytes.get(at..).is_some_and(|rest| rest.starts_with(b"//"))
}

/// Returns the length of the first token: a text, a comment, a word, an operator, or any other byte.
fn token_length(rest: &[u8]) -> usize {
    let until = |end: fn(u8) -> bool| rest.iter().position(|byte| end(*byte)).unwrap_or(rest.len());
    match rest {
        [b'"', ..] => text_length(rest),
        [b'/', b'/', ..] => until(|byte| matches!(byte, b'\n' | b'\r')),
        [b'&', b'&', ..] | [b'|', b'|', ..] | [b'=' | b'!' | b'<' | b'>', b'=', ..] => 2,
        [b'a'..=b'z' | b'A'..=b'Z' | b'_' | b'0'..=b'9', ..] => {
            until(|byte| !byte.is_ascii_alphanumeric() && byte != b'_')
        }
        _ => 1,
    }
}

/// Returns the length of a quoted text with its quotes.
fn text_length(rest: &[u8]) -> usize {
    let mut at = 1;
    loop {
        match rest.get(at) {
            None => return rest.len(),
            Some(b'"') => return at + 1,
            Some(b'\\') => at += 2,
            Some(_) => at += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_accepted(condition: &str) -> bool {
        let before = "permit(principal, action, resource) when { true };\n".repeat(300);
        first_too_deep(&format!(
            "{before}forbid(principal, action, resource) when {{ {condition} }};"
        ))
        .is_none()
    }

    #[test]
    fn every_way_to_nest_is_bounded() {
        let nested =
            |open: &str, close: &str, levels: usize| format!("{}1{}", open.repeat(levels), close.repeat(levels));
        let ways: [fn(usize) -> String; 14] = [
            |levels| vec!["a"; levels].join(" && "),
            |levels| vec!["a"; levels].join("||"),
            |levels| vec!["1"; levels].join("+"),
            |levels| vec!["1"; levels].join("-"),
            |levels| vec!["1"; levels].join("*"),
            |levels| vec!["a"; levels].join("."),
            |levels| vec!["a"; levels].join(" in "),
            |levels| format!("{}a", "!".repeat(levels)),
            |levels| format!("{}1", "-".repeat(levels)),
            |levels| format!("{}c", "if a then b else ".repeat(levels)),
            |levels| format!("a{}", "()".repeat(levels)),
            |levels| format!("a{}", "[0]".repeat(levels)),
            |levels| format!("true{}", " } when { true".repeat(levels)),
            |levels| format!("{}\"//\"{}", "[\"\\\"//\", ".repeat(levels), "]".repeat(levels)),
        ];
        for (number, way) in ways.iter().enumerate() {
            assert!(is_accepted(&way(80)), "{number}");
            assert!(!is_accepted(&way(MAX_NESTING + 10)), "{number}");
        }
        for brackets in [["(", ")"], ["[", "]"], ["{a: ", "}"], ["a.b(", ")"]] {
            assert!(is_accepted(&nested(brackets[0], brackets[1], 80)), "{brackets:?}");
            assert!(
                !is_accepted(&nested(brackets[0], brackets[1], MAX_NESTING + 10)),
                "{brackets:?}"
            );
            assert!(!is_accepted(&nested(brackets[0], "", MAX_NESTING + 10)), "{brackets:?}");
        }
    }

    #[test]
    fn brackets_and_chains_add_up() {
        let chain = vec!["a"; 100].join(" && ");
        let nested = |levels: usize| (0..levels).fold("a".to_owned(), |inner, _| format!("({chain} && ({inner}))"));
        assert!(is_accepted(&nested(2)));
        assert!(!is_accepted(&nested(3)));
    }

    #[test]
    fn long_lists_texts_and_comments_do_not_nest() {
        let users = (0..5000).map(|number| format!("User::\"acme/u{number}\""));
        assert!(is_accepted(&format!(
            "[{}].contains(principal)",
            users.collect::<Vec<_>>().join(", ")
        )));
        assert!(is_accepted(&format!("principal.tenant == \"{}\"", "((".repeat(1000))));
        assert!(is_accepted(&format!("true // {}\n", "((&&||!".repeat(1000))));
        let tests = vec!["resource.hasTag(\"kind\") && resource.getTag(\"kind\") == \"chat\""; 64];
        assert!(is_accepted(&tests.join(" || ")));
    }
}
