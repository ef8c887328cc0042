//! The function `classifier`: naive Bayes over categorical features. See docs/functions/classifier.md.

use model::Nanos;
use serde::Deserialize;

use crate::about::{About, Metric, Reason};
use crate::burst::Burst;
use crate::configuration::{Error, from_toml, within};
use crate::function::{Function, Setup, Summary};
use crate::requests::{self, BAD_REQUEST};

/// Features of a request, at most: one byte each, in a packet of 1500 bytes.
const FEATURES_LIMIT: usize = 1400;
/// Values of a feature, at most: those of a byte.
const VALUES_LIMIT: usize = 256;
const CLASSES_LIMIT: usize = 64;
/// Counts of a model, at most: 256 MiB with their logarithms.
const CELLS_LIMIT: usize = 1 << 25;
/// Logarithms are in this part of a nat.
const SCALE: f64 = 65_536.0;
// The sum of the logarithms of all features fits 32 bits: each is at most ln 2^32 = 22.2.
const _: () = assert!(FEATURES_LIMIT as f64 * 22.2 * SCALE < i32::MAX as f64);

/// The first byte of a request. That of an answer has [`ANSWER`] besides.
const CLASSIFY: u8 = 1;
const TRAIN: u8 = 2;
const ANSWER: u8 = 0x80;
/// Bytes before the features of a request: its kind, and the class to which a sample belongs.
const HEADER: usize = 2;
/// Bytes of an answer: kind, class, two of zero, and how much more probable the class is than the next one.
const ANSWER_BYTES: usize = 8;

const NOT_TRAINING: Reason = Reason(3);
const REASONS: &[Metric] = &[
    requests::REASONS[0],
    requests::REASONS[1],
    requests::REASONS[2],
    Metric::counter(
        "not_training",
        "Samples, while the configuration does not allow them",
    ),
];

const METRICS: &[Metric] = &[
    Metric::counter("other", "Packets that are no requests, which passed on"),
    Metric::counter("classified", "Requests that were answered with a class"),
    Metric::counter(
        "samples",
        "Samples that the model learnt from, without those of the configuration",
    ),
];

/// Classifies by naive Bayes.
///
/// ```toml
/// port = 9103                     # UDP port of requests
/// classes = ["web", "video"]      # 2 to 64
/// features = 3                    # of a request: one byte each
/// values = 16                     # a feature is 0 to 15
/// training = false                # whether requests may be samples
///
/// [[sample]]
/// class = "web"
/// features = [1, 0, 15]
/// count = 10                      # how often it was seen
/// ```
#[derive(Debug)]
pub struct Classifier {
    state: State,
    other: u64,
    classified: u64,
    samples: u64,
}

#[derive(Debug)]
struct State {
    settings: Settings,
    model: Model,
}

/// The configuration of [`Classifier`], with the model that its samples give.
#[derive(Debug)]
pub struct Configuration(Box<State>);

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    #[serde(default = "port")]
    port: u16,
    classes: Vec<String>,
    features: usize,
    values: usize,
    #[serde(default)]
    training: bool,
    #[serde(default)]
    sample: Vec<Sample>,
}

const fn port() -> u16 {
    9103
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sample {
    class: String,
    features: Vec<u8>,
    #[serde(default = "one")]
    count: u32,
}

const fn one() -> u32 {
    1
}

/// Counts of samples with their logarithms. The probability of a class is
/// `(n + 1) / (all + classes)`, that of a value in it `(n of the value + 1) / (n + values)` (Laplace's rule of
/// succession).
#[derive(Debug)]
struct Model {
    classes: usize,
    features: usize,
    values: usize,
    /// By class.
    seen: Vec<u32>,
    base: Vec<i64>,
    /// By feature, value and class: what a request looks up lies side by side.
    counts: Vec<u32>,
    logs: Vec<i32>,
    /// The sums of the request in hand.
    sums: Vec<i32>,
}

/// The logarithm of a count, in 1/65536 nat.
fn log(count: u64) -> i32 {
    ((count as f64).ln() * SCALE).round() as i32
}

impl Model {
    fn new(classes: usize, features: usize, values: usize) -> Model {
        let mut model = Model {
            classes,
            features,
            values,
            seen: vec![0; classes],
            base: vec![0; classes],
            counts: vec![0; features * values * classes],
            // The logarithm of 1.
            logs: vec![0; features * values * classes],
            sums: vec![0; classes],
        };
        for class in 0..classes {
            model.settle(class);
        }
        model
    }

    /// What a class has before any feature is known. What all classes have in common is left out.
    fn settle(&mut self, class: usize) {
        let seen = u64::from(self.seen[class]);
        let denominators = self.features as i64 * i64::from(log(seen + self.values as u64));
        self.base[class] = i64::from(log(seen + 1)) - denominators;
    }

    /// Whether these are the features of a request.
    fn fits(&self, features: &[u8]) -> bool {
        features.len() == self.features && features.iter().all(|value| usize::from(*value) < self.values)
    }

    /// Learns from a sample that fits.
    fn train(&mut self, class: usize, features: &[u8], count: u32) {
        self.seen[class] = self.seen[class].saturating_add(count);
        for (feature, value) in features.iter().enumerate() {
            let at = (feature * self.values + usize::from(*value)) * self.classes + class;
            self.counts[at] = self.counts[at].saturating_add(count);
            self.logs[at] = log(u64::from(self.counts[at]) + 1);
        }
        self.settle(class);
    }

    /// The most probable class of a request that fits, and how much more probable it is than the next one, in 1/65536 nat.
    /// Of two that are equally probable, the first one.
    fn classify(&mut self, features: &[u8]) -> (usize, u64) {
        let classes = self.classes;
        self.sums.fill(0);
        for (of_feature, value) in self.logs.chunks_exact(self.values * classes).zip(features) {
            let begin = usize::from(*value) * classes;
            let row = of_feature.get(begin..begin + classes).unwrap_or_default();
            for (sum, log) in self.sums.iter_mut().zip(row) {
                *sum += log;
            }
        }
        let mut best = (0, i64::MIN);
        let mut next = i64::MIN;
        for (class, (base, sum)) in self.base.iter().zip(&self.sums).enumerate() {
            let of = base + i64::from(*sum);
            if of > best.1 {
                next = best.1;
                best = (class, of);
            } else {
                next = next.max(of);
            }
        }
        (best.0, best.1.abs_diff(next))
    }
}

impl Function for Classifier {
    type Configuration = Configuration;

    fn about() -> About {
        About {
            name: "classifier",
            help: "Answers UDP requests with the class of their features, by naive Bayes",
            reasons: REASONS,
            metrics: METRICS,
        }
    }

    fn compile(text: &str, _setup: &Setup) -> Result<Configuration, Error> {
        let settings: Settings = from_toml(text)?;
        let (classes, features, values) = (settings.classes.len(), settings.features, settings.values);
        within("port", settings.port.into(), 1, 65_535, "")?;
        within("classes", classes, 2, CLASSES_LIMIT, "classes")?;
        within("features", features, 1, FEATURES_LIMIT, "features")?;
        within("values", values, 2, VALUES_LIMIT, "values")?;
        let cells = classes * features * values;
        within("classes * features * values", cells, 1, CELLS_LIMIT, "counts")?;
        let mut model = Model::new(classes, features, values);
        for (at, sample) in settings.sample.iter().enumerate() {
            let wrong = |what: &str| Error::whole(format!("sample {}: {what}", at + 1));
            let class = settings.classes.iter().position(|of| *of == sample.class);
            let class = class.ok_or_else(|| wrong("class: it is none of classes"))?;
            if !model.fits(&sample.features) {
                let what = format!("features: there are {features}, each from 0 to {}", values - 1);
                return Err(wrong(&what));
            }
            model.train(class, &sample.features, sample.count);
        }
        Ok(Configuration(Box::new(State { settings, model })))
    }

    fn new(configuration: Configuration, _setup: &Setup) -> Classifier {
        Classifier {
            state: *configuration.0,
            other: 0,
            classified: 0,
            samples: 0,
        }
    }

    /// The new model takes the place of the old one, with all that this has learnt from requests.
    fn reload(&mut self, mut configuration: Configuration) -> Configuration {
        std::mem::swap(&mut *configuration.0, &mut self.state);
        configuration
    }

    fn process(&mut self, burst: &mut Burst, _now: Nanos) {
        let Classifier {
            state,
            other,
            classified,
            samples,
        } = self;
        let (model, training) = (&mut state.model, state.settings.training);
        *other += requests::serve(burst, state.settings.port, |packet, mut request| {
            let payload = request.payload(packet.frame());
            let (&[kind, class], features) = payload.split_first_chunk::<HEADER>().ok_or(BAD_REQUEST)?;
            let features = features.get(..model.features).ok_or(BAD_REQUEST)?;
            if !model.fits(features) {
                return Err(BAD_REQUEST);
            }
            match kind {
                CLASSIFY => {
                    let (class, margin) = model.classify(features);
                    *classified += 1;
                    let mut answer = [0; ANSWER_BYTES];
                    answer[..2].copy_from_slice(&[CLASSIFY | ANSWER, class as u8]);
                    let margin = u32::try_from(margin).unwrap_or(u32::MAX);
                    answer[4..].copy_from_slice(&margin.to_be_bytes());
                    request.answer(packet, &answer)
                }
                TRAIN if usize::from(class) < model.classes => {
                    if !training {
                        return Err(NOT_TRAINING);
                    }
                    model.train(class.into(), features, 1);
                    *samples += 1;
                    packet.consume();
                    Ok(())
                }
                _ => Err(BAD_REQUEST),
            }
        });
    }

    fn metrics(&self, values: &mut [u64]) {
        let all = [self.other, self.classified, self.samples];
        for (value, of) in values.iter_mut().zip(all) {
            *value = of;
        }
    }

    /// `entries` are counts of the model.
    fn summary(&self) -> Summary {
        Summary {
            entries: self.state.model.counts.len() as u64,
            ..Summary::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::burst::Verdict;
    use crate::requests::tests::ask;

    const SETUP: Setup = Setup {
        instance: 1,
        ports: 1,
        seed: 3,
        external: None,
    };

    fn classifier(text: &str) -> Classifier {
        Classifier::new(Classifier::compile(text, &SETUP).unwrap(), &SETUP)
    }

    fn request(kind: u8, class: u8, features: &[u8]) -> Vec<u8> {
        [&[kind, class], features].concat()
    }

    /// The logarithm of the probability of each class, up to what they have in common: from the samples themselves.
    fn posterior(samples: &[(u8, [u8; 5])], of: &[u8; 5], classes: u8, values: u8) -> Vec<f64> {
        let of_class = |class| {
            let mine = samples
                .iter()
                .filter(move |sample| sample.0 == class)
                .map(|sample| sample.1);
            let n = mine.clone().count() as f64;
            let prior = (n + 1.0) / (samples.len() as f64 + f64::from(classes));
            let features = of.iter().enumerate().map(|(at, value)| {
                let with = mine.clone().filter(|sample| sample[at] == *value).count() as f64;
                ((with + 1.0) / (n + f64::from(values))).ln()
            });
            prior.ln() + features.sum::<f64>()
        };
        (0..classes).map(of_class).collect()
    }

    proptest! {
        #[test]
        fn the_class_is_the_most_probable_one(
            samples in prop::collection::vec((0..3_u8, prop::array::uniform5(0..4_u8)), 0..60),
            learnt in 0..60_usize,
            queries in prop::collection::vec(prop::array::uniform5(0..4_u8), 1..20),
        ) {
            // A part is in the configuration, the others come as requests.
            let (given, sent) = samples.split_at(learnt.min(samples.len()));
            let mut text = "classes = [\"a\", \"b\", \"c\"]\nfeatures = 5\nvalues = 4\ntraining = true\n".to_owned();
            for (class, features) in given {
                let class = ["a", "b", "c"][usize::from(*class)];
                text.push_str(&format!("[[sample]]\nclass = \"{class}\"\nfeatures = {features:?}\n"));
            }
            let mut classifier = classifier(&text);
            for (class, features) in sent {
                prop_assert_eq!(ask(&mut classifier, 9103, &request(TRAIN, *class, features)).0, Verdict::Consume);
            }
            for query in queries {
                let (verdict, answer) = ask(&mut classifier, 9103, &request(CLASSIFY, 0, &query));
                prop_assert_eq!((verdict, answer.len()), (Verdict::Answer, ANSWER_BYTES));
                let mut all: Vec<(f64, u8)> = posterior(&samples, &query, 3, 4).into_iter().zip(0..).collect();
                let chosen = all[usize::from(answer[1])].0;
                all.sort_by(|a, b| b.0.total_cmp(&a.0));
                // Half a part of rounding for each of 11 logarithms, of two classes: one of the class, two of each feature.
                // Ties go to the first.
                let error = 11.0 / SCALE;
                prop_assert!(all[0].0 - chosen <= error);
                let margin = f64::from(u32::from_be_bytes(*answer.last_chunk().unwrap())) / SCALE;
                prop_assert!((margin - (all[0].0 - all[1].0)).abs() <= error);
            }
        }

        #[test]
        fn foreign_requests_are_refused_or_answered(payload in prop::collection::vec(0..4_u8, 0..9)) {
            let mut classifier = classifier("classes = [\"a\", \"b\"]\nfeatures = 3\nvalues = 3");
            let verdict = ask(&mut classifier, 9103, &payload).0;
            let fits = payload.len() >= HEADER + 3 && payload[2..5].iter().all(|value| *value < 3);
            prop_assert_eq!(verdict, match payload.first() {
                Some(&CLASSIFY) if fits => Verdict::Answer,
                Some(&TRAIN) if fits && payload[1] < 2 => Verdict::Drop(NOT_TRAINING),
                _ => Verdict::Drop(BAD_REQUEST),
            });
        }
    }

    #[test]
    fn mistakes_are_said() {
        let text = "classes = [\"a\", \"b\"]\nfeatures = 2\nvalues = 4\n";
        for (more, says) in [
            ("[[sample]]\nclass = \"c\"\nfeatures = [1, 2]", "sample 1: class"),
            (
                "[[sample]]\nclass = \"a\"\nfeatures = [1]",
                "there are 2, each from 0 to 3",
            ),
            ("[[sample]]\nclass = \"a\"\nfeatures = [1, 4]", "each from 0 to 3"),
            ("port = 0", "port: 0"),
            ("train = true", "line 4: unknown field"),
        ] {
            let error = Classifier::compile(&format!("{text}{more}"), &SETUP).unwrap_err();
            assert!(error.to_string().contains(says), "{more}: {error}");
        }
        let large = "classes = [\"a\", \"b\"]\nfeatures = 1401\nvalues = 4\n";
        assert!(Classifier::compile(large, &SETUP).is_err());
    }

    #[test]
    fn counts_end_at_their_limit() {
        let sample = format!(
            "[[sample]]\nclass = \"b\"\nfeatures = [255, 0]\ncount = {}\n",
            u32::MAX
        );
        let text = format!("classes = [\"a\", \"b\"]\nfeatures = 2\nvalues = 256\n{sample}{sample}");
        let mut classifier = classifier(&text);
        assert_eq!(
            ask(&mut classifier, 9103, &request(CLASSIFY, 0, &[255, 0])).1[1],
            1
        );
        assert_eq!(classifier.summary().entries, 1024);
    }
}
