//! Paths of the files that agents see: absolute, with `/`, and always inside the workspace.

/// The maximum length of a path, in bytes: that of Linux.
const MAX_PATH_BYTES: usize = 4_096;

/// Returns the normal form of `path`: absolute, without `.`, empty parts and a trailing `/`. The root is `/`.
///
/// # Errors
/// Returns the reason if the path could lead out of the workspace, or is too long.
pub fn normalise(path: &str) -> Result<String, &'static str> {
    if path.len() > MAX_PATH_BYTES {
        return Err("it is longer than 4096 bytes");
    }
    let path = path.replace('\\', "/");
    if path.starts_with('~') {
        return Err("it must not begin with ~");
    }
    let mut letters = path.trim_start_matches('/').chars();
    if letters.next().is_some_and(|letter| letter.is_ascii_alphabetic()) && letters.next() == Some(':') {
        return Err("it must not name a drive; paths begin with /");
    }
    if path.contains('\0') {
        return Err("it contains a zero character");
    }
    let mut clean = String::new();
    for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part == ".." {
            return Err("it must not contain ..");
        }
        clean.push('/');
        clean.push_str(part);
    }
    Ok(if clean.is_empty() { "/".to_owned() } else { clean })
}

/// Returns the rest of `path` after `directory`, if `path` is below it. Both must be in normal form.
pub fn below<'a>(path: &'a str, directory: &str) -> Option<&'a str> {
    path.strip_prefix(directory.trim_end_matches('/'))?.strip_prefix('/')
}

/// The maximum length of a name that is made of an id.
const MAX_NAME_CHARS: usize = 100;

/// Returns a name for a file that is about something with this id. Different ids may have the same name.
pub fn file_name(id: &str) -> String {
    let safe = |letter: char| {
        if letter.is_ascii_alphanumeric() || "-_".contains(letter) {
            letter
        } else {
            '_'
        }
    };
    let name: String = id.chars().map(safe).take(MAX_NAME_CHARS).collect();
    if name.is_empty() { "unnamed".to_owned() } else { name }
}

/// Returns `path`, with the first number from 2 on for which the path is not taken, if it is taken itself.
pub fn numbered(path: String, is_taken: impl Fn(&str) -> bool) -> String {
    if !is_taken(&path) {
        return path;
    }
    let mut number = 2_u64;
    loop {
        let numbered = format!("{path}-{number}");
        if !is_taken(&numbered) {
            return numbered;
        }
        number += 1;
    }
}

/// The folder in which an agent sees the files of its definition. It contains nothing else and is read-only.
pub const FOLDER: &str = "/.agent";

/// Returns whether an absolute path is in the folder with the files of the agent's definition.
pub fn is_bundled(path: &str) -> bool {
    path == FOLDER || below(path, FOLDER).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_has_one_normal_form() {
        let cases = [
            ("a.txt", "/a.txt"),
            ("/a//b/./c/", "/a/b/c"),
            ("", "/"),
            ("/", "/"),
            ("./x", "/x"),
            ("a\\b", "/a/b"),
            ("/a/..b/c..", "/a/..b/c.."),
        ];
        for (given, normal) in cases {
            assert_eq!(normalise(given).as_deref(), Ok(normal));
        }
    }

    #[test]
    fn paths_that_could_lead_out_are_refused() {
        for path in [
            "../x", "/a/../x", "a\\..\\x", "~/x", "~root", "C:\\x", "c:/x", "/C:/x", "/a\0b",
        ] {
            assert!(normalise(path).is_err(), "{path}");
        }
        assert!(normalise(&"a/".repeat(2_048)).is_ok());
        assert_eq!(normalise(&"a/".repeat(2_049)), Err("it is longer than 4096 bytes"));
    }

    #[test]
    fn names_of_files_have_safe_letters_and_a_number_if_they_are_taken() {
        let cases = [
            ("call_1-a", "call_1-a"),
            ("a/b.c", "a_b_c"),
            ("", "unnamed"),
            ("é..", "___"),
        ];
        for (id, name) in cases {
            assert_eq!(file_name(id), name);
        }
        assert_eq!(file_name(&"x".repeat(5_000)).len(), MAX_NAME_CHARS);
        let taken = ["/a", "/a-2"];
        assert_eq!(numbered("/a".to_owned(), |path| taken.contains(&path)), "/a-3");
        assert_eq!(numbered("/b".to_owned(), |path| taken.contains(&path)), "/b");
    }

    #[test]
    fn below_a_directory_means_inside_it() {
        assert_eq!(below("/a/b/c", "/a"), Some("b/c"));
        assert_eq!(below("/a", "/"), Some("a"));
        assert_eq!(below("/ab", "/a"), None);
        assert_eq!(below("/a", "/a"), None);
    }
}
