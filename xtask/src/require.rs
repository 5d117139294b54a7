//! `CGPU_REQUIRE`: tools without which tests fail instead of being skipped.

/// Returns whether the list in CGPU_REQUIRE (`python,docker`) contains this tool.
pub(crate) fn requires(tool: &str) -> bool {
    std::env::var("CGPU_REQUIRE").is_ok_and(|list| names(&list, tool))
}

fn names(list: &str, tool: &str) -> bool {
    list.split(',').any(|name| name.trim() == tool)
}

#[cfg(test)]
mod tests {
    use super::names;

    #[test]
    fn list_names_whole_words() {
        assert!(names("fuse, python", "python"));
        assert!(!names("fuse,python3", "python"));
        assert!(!names("", "python"));
    }
}
