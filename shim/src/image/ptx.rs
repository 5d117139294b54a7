//! Size of the variables that a PTX text declares. The size of its code is unknown before
//! compilation.
//!
//! ```text
//! .visible .global .align 8 .b8 table[1048576];        .extern .global .u32 elsewhere;
//! .global .attribute(.managed) .u32 on_the_host;       .global .v4 .f32 a[2][3], b = 1;
//! ```

/// Returns the bytes of the variables that a text defines in GPU memory. Saturates.
pub(super) fn variables(text: &[u8]) -> u64 {
    const GLOBAL: &[u8] = b".global";
    let mut total = 0_u64;
    let mut rest = text;
    let mut before: &[u8] = b"";
    while let Some(at) = rest.windows(GLOBAL.len()).position(|window| window == GLOBAL) {
        let (head, tail) = rest.split_at(at);
        let (_, declared) = tail.split_at(GLOBAL.len());
        let begins = head
            .last()
            .or(before.last())
            .is_none_or(|byte| byte.is_ascii_whitespace() || *byte == b';');
        let ends = declared.first().is_some_and(|byte| byte.is_ascii_whitespace() || *byte == b'.');
        // `ld.global` and its like are instructions.
        if begins && ends && !head.trim_ascii_end().ends_with(b".extern") {
            total = total.saturating_add(declaration(statement(declared)).unwrap_or(0));
        }
        (before, rest) = (GLOBAL, declared);
    }
    total
}

/// Returns the text up to the end of its statement.
fn statement(text: &[u8]) -> &[u8] {
    let end = text.iter().position(|byte| *byte == b';').unwrap_or(text.len());
    text.get(..end).unwrap_or_default()
}

/// Returns the bytes of one declaration's variables; none: nothing on the GPU, or unknown.
fn declaration(text: &[u8]) -> Option<u64> {
    let text = core::str::from_utf8(text).ok()?;
    if text.contains(".managed") {
        return None;
    }
    let (mut each, mut many, mut rest) = (None, 1, text.trim_start());
    while let Some(word) = rest.strip_prefix('.') {
        let length =
            word.find(|letter: char| !letter.is_ascii_alphanumeric()).unwrap_or(word.len());
        let (word, after) = word.split_at(length);
        rest = after.trim_start();
        match word {
            "align" => {
                rest = rest.trim_start_matches(|letter: char| letter.is_ascii_digit()).trim_start()
            }
            "attribute" => {
                let after = rest.split_once(')')?.1;
                rest = after
                    .trim_start_matches(|letter: char| letter == ')' || letter.is_whitespace());
            }
            "v2" => many = 2,
            "v4" => many = 4,
            "v8" => many = 8,
            "pred" => each = Some(1),
            // The width in bits: `b8`, `u32`, `bf16`, `f16x2`.
            kind => {
                let (bits, twice) = kind.strip_suffix("x2").map_or((kind, 1), |kind| (kind, 2));
                let bits: u64 = bits
                    .trim_start_matches(|letter: char| letter.is_ascii_alphabetic())
                    .parse()
                    .ok()?;
                each = Some(bits.div_ceil(8) * twice);
            }
        }
    }
    let each: u64 = each?;
    // Initial values do not matter, except for an array of open size, which is small.
    let names = rest.split('=').next()?;
    let elements = |name: &str| {
        let mut dimensions = name.split('[').skip(1);
        dimensions.try_fold(1_u64, |product, dimension| {
            let count: u64 = dimension.split(']').next()?.trim().parse().ok()?;
            Some(product.saturating_mul(count))
        })
    };
    let of = |name| elements(name).unwrap_or(0).saturating_mul(each).saturating_mul(many);
    Some(names.split(',').map(of).fold(0, u64::saturating_add))
}

#[cfg(test)]
mod tests {
    use super::variables;

    #[test]
    fn declared_variables_are_counted() {
        for (text, bytes) in [
            (".visible .global .align 8 .b8 table[1048576];", 1 << 20),
            (".version 7.0\n.target sm_70\n.global .u32 one;\n.global .f64 two = 0d0;", 12),
            (".global .v4 .f32 a[2][3], b;", 7 * 16),
            (".global .align 4 .f16x2 pairs[8];.global .bf16 x;", 34),
            (".global .align 1 .b8 text[] = {104, 105, 0};", 0),
            (".extern .global .u32 elsewhere;", 0),
            (".global .attribute(.managed) .align 4 .u32 shared;", 0),
            (".global .attribute(.unified(1, 2)) .u32 far;", 4),
            (".entry k() { ld.global.u32 %r1, [%rd1]; st.global.u32 [%rd1], %r1; }", 0),
            (".const .b8 c[100]; .shared .b8 s[100]; .local .b8 l[100];", 0),
            (".global .b8 much[18446744073709551615]; .global .b8 more[2];", u64::MAX),
            (".global .texref t; .global", 0),
            (".global .b8 broken[12", 12),
            ("// .globally", 0),
        ] {
            assert_eq!(variables(text.as_bytes()), bytes, "{text}");
        }
    }

    #[test]
    fn any_bytes_are_parsed_without_a_panic() {
        let text = b".global .b8 \xff[4]; .global .b8 fine[4];";
        assert_eq!(variables(text), 4);
        for end in 0..text.len() {
            variables(&text[..end]);
        }
    }
}
