//! Stop strings: the streaming matcher finds what a search of the whole text finds.

use galvani_text::StopMatcher;

use super::Target;

pub const TARGET: Target = Target {
    name: "stop",
    about: "stop strings: lines of stops, an empty line, then the text, whose pieces end at tabs",
    run,
    seeds: || {
        vec![
            b"END\nEN\n\nto be\t or not EN\tD".to_vec(),
            b"aab\n\naaaaa\tb".to_vec(),
            b"\n\n\n".to_vec(),
            b"aba\nbab\n\nabab".to_vec(),
        ]
    },
    dictionary: &[b"\t", b"\n\n", b"aab", b"aba", b"END", b"\xc3\xa9"],
};

fn run(input: &[u8]) -> String {
    let input = String::from_utf8_lossy(input);
    let (stops, text) = input.split_once("\n\n").unwrap_or(("", &input));
    let stops: Vec<String> = stops.lines().take(8).map(str::to_owned).collect();
    let mut matcher = StopMatcher::new(stops.clone());
    let (mut emitted, mut hit) = (String::new(), None);
    for piece in text.split('\t') {
        let step = matcher.push(piece);
        emitted.push_str(&step.emit);
        hit = hit.or(step.hit);
    }
    if hit.is_none() {
        emitted.push_str(&matcher.finish());
    }
    let whole = text.replace('\t', "");
    // The match that ends first; of those that end there, the one that starts first.
    let found = stops
        .iter()
        .filter(|stop| !stop.is_empty())
        .filter_map(|stop| whole.find(stop.as_str()).map(|at| (at + stop.len(), at)));
    match found.min() {
        None => {
            assert_eq!(hit, None);
            assert_eq!(emitted, whole);
            "no stop".to_owned()
        }
        Some((end, start)) => {
            let hit = hit.expect("the stop is there");
            assert!(whole[..end].ends_with(&stops[hit]), "stop {hit}");
            assert_eq!(emitted, whole[..end - stops[hit].len()]);
            assert_eq!(
                end - stops[hit].len(),
                start,
                "of stops that end together, the longest"
            );
            format!("stop after {} pieces", text[..].matches('\t').count().min(9))
        }
    }
}
