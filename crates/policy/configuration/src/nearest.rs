//! The known word nearest to an unknown one.

/// The known word that was probably meant: at most a third of its letters may differ, but two may always.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let near = |candidate: &'a str| {
        let distance = distance(word, candidate);
        (distance <= (candidate.len() / 3).max(2) && distance < candidate.len())
            .then_some((distance, candidate))
    };
    known
        .into_iter()
        .filter_map(near)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Number of letters of the word that differ from the known one.
pub(crate) fn distance(word: &str, known: &str) -> usize {
    strsim::damerau_levenshtein(&word.to_lowercase(), known)
}

/// "write X" if a known word was probably meant, else all known words.
pub(crate) fn write_one_of<'a>(word: &str, known: impl IntoIterator<Item = &'a str> + Clone) -> String {
    match nearest(word, known.clone()) {
        Some(near) => format!("write {near:?}"),
        None => format!("write one of {}", list(known)),
    }
}

/// Formats words as `"a", "b"`.
pub(crate) fn list<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    let quoted: Vec<String> = words.into_iter().map(|word| format!("{word:?}")).collect();
    quoted.join(", ")
}

/// Checks the name of a scheduler, for a command line.
///
/// # Errors
/// No scheduler has that name. The message suggests the nearest.
pub fn scheduler_name(name: &str) -> Result<String, String> {
    match scheduling::Scheduler::from_name(name) {
        Ok(_) => Ok(name.to_owned()),
        Err(error) => Err(
            match nearest(name, scheduling::Scheduler::NAMES.iter().copied()) {
                Some(near) => format!("{error}; did you mean {near}?"),
                None => error.to_string(),
            },
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_found_and_far_ones_are_not_offered() {
        let known = ["instances", "image", "ring", "cpus"];
        assert_eq!(nearest("instance", known), Some("instances"));
        assert_eq!(nearest("Image", known), Some("image"));
        assert_eq!(nearest("cpu", known), Some("cpus"));
        assert_eq!(nearest("colour", known), None);
        assert_eq!(nearest("", known), None);
        assert_eq!(write_one_of("colour", ["a", "b"]), "write one of \"a\", \"b\"");
    }
}
