//! Statistical tests of whether new times are longer than old ones: the U test of Mann and Whitney,
//! and Holm's correction for many tests.
//!
//! Times are skewed, with a few outliers: means and the normal distribution say little about them.
//! The U test asks only which of two times is the longer one (Mann and Whitney, "On a test of
//! whether one of two random variables is stochastically larger than the other", 1947). For few
//! samples, the distribution of U is computed exactly, by counting, ties included (Streitberg and
//! Röhmel, "Exact distributions for permutation and rank tests", 1986). For many samples, the
//! normal distribution approximates the distribution of U, with corrections for ties and for
//! continuity (Lehmann, "Nonparametrics", 1975, section 1.4). Holm's correction ("A simple
//! sequentially rejective multiple test procedure", 1979) keeps the probability of any false alarm
//! among all tests at or below the chosen level, even if the tests depend on each other.
//!
//! In this module, the rank of a sample is its number, from 1, among all old and new samples in
//! ascending order; equal samples share the mean of their numbers.

/// Largest number of samples, old and new together, for the exact distribution. With more samples,
/// the normal distribution is used. Up to this number, every count of the exact distribution is a
/// whole number below 2^53.
const EXACT_MAX: usize = 50;

/// U test, with a cache of the last exact distribution. Without ties, the distribution depends only
/// on the numbers of samples, so successive tests with equal numbers share it.
#[derive(Debug, Default)]
pub struct RankTest {
    /// Key of the cached distribution: the ranks times two, in order, and the number of new
    /// samples. Twice a rank is an integer, even if ties share a fractional rank.
    counted: (Vec<usize>, usize),
    /// Cached distribution: the entry with index s is the probability that twice the sum of the new
    /// samples' ranks is at least s.
    at_least: Vec<f64>,
}

/// Pooled samples in order.
struct Pooled {
    /// Rank of each sample times two, in order; the first rank is 1.
    ranks: Vec<usize>,
    /// Sum of the ranks of the new samples, times two.
    sum: usize,
    /// Sum of t^3 - t over all groups of equal samples; t is the number of samples in a group.
    ties: f64,
}

impl RankTest {
    /// Returns the one-sided p-value: the probability that chance alone makes new samples
    /// exceed old ones by at least as much as `new` exceeds `old`. It is 1 if `old` or `new` is
    /// empty.
    #[must_use]
    pub fn longer(&mut self, old: &[f64], new: &[f64]) -> f64 {
        if old.is_empty() || new.is_empty() {
            return 1.0;
        }
        let pooled = pool(old, new);
        match old.len() + new.len() {
            ..=EXACT_MAX => self.exact(pooled, new.len()),
            _ => normal(&pooled, old.len() as f64, new.len() as f64),
        }
    }

    fn exact(&mut self, pooled: Pooled, new: usize) -> f64 {
        let key = (pooled.ranks, new);
        if self.counted != key {
            self.at_least = distribution(&key.0, new);
            self.counted = key;
        }
        self.at_least.get(pooled.sum).copied().unwrap_or(0.0)
    }
}

fn pool(old: &[f64], new: &[f64]) -> Pooled {
    let olds = old.iter().map(|value| (*value, 0));
    let mut all: Vec<(f64, usize)> = olds.chain(new.iter().map(|value| (*value, 1))).collect();
    all.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut pooled = Pooled { ranks: Vec::with_capacity(all.len()), sum: 0, ties: 0.0 };
    for equal in all.chunk_by(|one, other| one.0 == other.0) {
        // Mean of the ranks first..=last, times two.
        let first = pooled.ranks.len() + 1;
        let rank = 2 * first + equal.len() - 1;
        pooled.ranks.extend(equal.iter().map(|_| rank));
        pooled.sum += rank * equal.iter().map(|(_, is_new)| is_new).sum::<usize>();
        let count = equal.len() as f64;
        pooled.ties += count.powi(3) - count;
    }
    pooled
}

/// Returns a table over all choices of `chosen` elements of `ranks`: the entry with index s is the
/// share of the choices whose sum is at least s.
fn distribution(ranks: &[usize], chosen: usize) -> Vec<f64> {
    // The largest ranks are the last.
    let most: usize = ranks.iter().rev().take(chosen).sum();
    let mut ways = vec![vec![0.0; most + 1]; chosen + 1];
    ways[0][0] = 1.0;
    for &rank in ranks {
        for count in (1..=chosen).rev() {
            let (before, after) = ways.split_at_mut(count);
            let from = before.last().into_iter().flatten();
            let into = after.iter_mut().next().into_iter().flatten().skip(rank);
            into.zip(from).for_each(|(into, from)| *into += from);
        }
    }
    let mut at_least = ways.swap_remove(chosen);
    let all: f64 = at_least.iter().sum();
    let mut sum = 0.0;
    for value in at_least.iter_mut().rev() {
        sum += *value;
        *value = sum / all;
    }
    at_least
}

fn normal(pooled: &Pooled, old: f64, new: f64) -> f64 {
    let all = old + new;
    // U is the sum of the new samples' ranks minus the least sum that is possible.
    let u = pooled.sum as f64 / 2.0 - new * (new + 1.0) / 2.0;
    let variance = old * new / 12.0 * (all + 1.0 - pooled.ties / (all * (all - 1.0)));
    if variance <= 0.0 {
        return 1.0;
    }
    let deviations = (u - old * new / 2.0 - 0.5) / variance.sqrt();
    libm::erfc(deviations / std::f64::consts::SQRT_2) / 2.0
}

/// Returns the least probability that [`RankTest::longer`] can return for these numbers of samples.
#[must_use]
pub fn least(old: usize, new: usize) -> f64 {
    let numbers = |from: usize, count: usize| (from..from + count).map(|number| number as f64);
    RankTest::default()
        .longer(&numbers(0, old).collect::<Vec<_>>(), &numbers(old, new).collect::<Vec<_>>())
}

/// Corrects the probabilities of many tests. If every corrected probability of at most L counts as
/// an alarm, the probability of any false alarm is at most L.
#[must_use]
pub fn holm(probabilities: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..probabilities.len()).collect();
    order.sort_by(|one, other| probabilities[*one].total_cmp(&probabilities[*other]));
    let mut corrected = vec![1.0; probabilities.len()];
    let mut least: f64 = 0.0;
    for (rank, test) in order.into_iter().enumerate() {
        let tests = (probabilities.len() - rank) as f64;
        least = least.max((probabilities[test] * tests).min(1.0));
        corrected[test] = least;
    }
    corrected
}

/// Returns the ratio of new to old samples: the median of all ratios of a new sample to an old one.
/// This is Hodges and Lehmann's estimate, for ratios. It is 1 if `old` or `new` is empty.
#[must_use]
pub fn ratio(old: &[f64], new: &[f64]) -> f64 {
    let mut all: Vec<f64> =
        new.iter().flat_map(|new| old.iter().map(move |old| new / old)).collect();
    all.sort_by(f64::total_cmp);
    match (all.get(all.len().saturating_sub(1) / 2), all.get(all.len() / 2)) {
        (Some(low), Some(high)) => f64::midpoint(*low, *high),
        _ => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use ccl_core::random::Random;

    use super::*;

    fn longer(old: &[f64], new: &[f64]) -> f64 {
        RankTest::default().longer(old, new)
    }

    /// Returns old and new samples without ties, such that U of the new samples is `u`.
    fn samples(old: usize, new: usize, u: usize) -> (Vec<f64>, Vec<f64>) {
        let mut left = u;
        let news = (0..new).rev().map(|number| {
            let above = left.min(old);
            left -= above;
            above as f64 - 0.5 + number as f64 * 1e-3
        });
        let news = news.collect();
        ((0..old).map(|number| number as f64).collect(), news)
    }

    #[test]
    fn few_samples_match_the_table_of_mann_and_whitney() {
        // Table I of Mann and Whitney's paper, to three digits: the entry with index u is the
        // probability that U of the old samples is at most u. This probability equals the
        // probability that U of the new samples is at least n m - u, because the two values of U
        // add up to n m.
        let tables: [(usize, usize, &[f64]); 4] = [
            (3, 3, &[0.050, 0.100, 0.200, 0.350, 0.500, 0.650]),
            (4, 3, &[0.028, 0.057, 0.114, 0.200, 0.314, 0.429, 0.571]),
            (4, 4, &[0.014, 0.029, 0.057, 0.100, 0.171, 0.243, 0.343, 0.443, 0.557]),
            (5, 5, &[0.004, 0.008, 0.016, 0.028, 0.048, 0.075, 0.111, 0.155, 0.210, 0.274]),
        ];
        for (n, m, table) in tables {
            for (u, expected) in table.iter().enumerate() {
                let (old, new) = samples(n, m, n * m - u);
                let p = longer(&old, &new);
                assert!((p - expected).abs() < 0.001, "n {n} m {m} U {u}: {p}, not {expected}");
            }
        }
    }

    #[test]
    fn critical_values_match_the_tables_in_textbooks() {
        // One-sided values; Siegel, "Nonparametric statistics", 1956, table K.
        for (n, m, level, u) in [
            (10, 10, 0.05, 27),
            (10, 10, 0.025, 23),
            (10, 10, 0.01, 19),
            (20, 20, 0.05, 138),
            (20, 20, 0.025, 127),
            (20, 20, 0.01, 114),
            (9, 15, 0.05, 39),
            (9, 20, 0.001, 26),
        ] {
            let p = |u: usize| {
                let (old, new) = samples(n, m, n * m - u);
                longer(&old, &new)
            };
            assert!(p(u) <= level && p(u + 1) > level, "{n} {m} {level}: {} {}", p(u), p(u + 1));
        }
    }

    #[test]
    fn p_values_match_those_of_other_programs() {
        // R's `wilcox.test`: Hollander and Wolfe, 1973, page 69: W = 35, p-value = 0.1272.
        let x = [0.80, 0.83, 1.89, 1.04, 1.45, 1.38, 1.91, 1.64, 0.73, 1.46];
        let y = [1.15, 0.88, 0.90, 0.74, 1.21];
        assert!((longer(&y, &x) - 0.1272).abs() < 5e-5);
        // SciPy's `mannwhitneyu`, two-sided: 0.1111 by the exact distribution, 0.11134688653314041
        // by the normal distribution.
        let (men, women) = ([19.0, 22.0, 16.0, 29.0, 24.0], [20.0, 11.0, 17.0, 12.0]);
        assert!((2.0 * longer(&women, &men) - 1.0 / 9.0).abs() < 1e-12);
        let p = 2.0 * normal(&pool(&women, &men), 4.0, 5.0);
        assert!((p - 0.111_346_886_533_140_41).abs() < 1e-12, "{p}");
        // R's `wilcox.test(Ozone ~ Month, airquality, subset = Month %in% c(5, 8))`, with ties:
        // W = 127.5, p-value = 0.0001208, two-sided.
        let may = [
            41, 36, 12, 18, 28, 23, 19, 8, 7, 16, 11, 14, 18, 14, 34, 6, 30, 11, 1, 11, 4, 32, 23,
            45, 115, 37,
        ];
        let august = [
            39, 9, 16, 78, 35, 66, 122, 89, 110, 44, 28, 65, 22, 59, 23, 31, 44, 21, 9, 45, 168,
            73, 76, 118, 84, 85,
        ];
        let [may, august] = [may, august].map(|month| month.map(f64::from));
        let p = 2.0 * longer(&may, &august);
        assert!((p - 0.000_120_8).abs() < 5e-8, "{p}");
        let pooled = pool(&may, &august);
        assert_eq!(26.0 * 26.0 - (pooled.sum as f64 / 2.0 - 26.0 * 27.0 / 2.0), 127.5);
    }

    /// Returns the exact p-value, by a count over all choices of the new samples from all samples.
    fn counted(old: &[f64], new: &[f64]) -> f64 {
        let all: Vec<f64> = old.iter().chain(new).copied().collect();
        let u = |is_new: &dyn Fn(usize) -> bool| {
            let mut u = 0.0;
            for one in (0..all.len()).filter(|at| is_new(*at)) {
                for other in (0..all.len()).filter(|at| !is_new(*at)) {
                    let (one, other) = (all[one], all[other]);
                    u += f64::from(u8::from(one > other)) + f64::from(u8::from(one == other)) / 2.0;
                }
            }
            u
        };
        let seen = u(&|at| at >= old.len());
        let choices = (0..1_u32 << all.len()).filter(|c| c.count_ones() as usize == new.len());
        let (mut as_much, mut count) = (0_u32, 0_u32);
        for choice in choices {
            count += 1;
            as_much += u32::from(u(&|at| choice >> at & 1 == 1) >= seen);
        }
        f64::from(as_much) / f64::from(count)
    }

    #[test]
    fn p_values_with_ties_match_an_exact_count() {
        let mut random = Random::new(7);
        let mut test = RankTest::default();
        for _ in 0..200 {
            let (old, new) = (1 + random.below(4), 1 + random.below(4));
            let values = 2 + random.below(5);
            let mut draw = |count: u64| -> Vec<f64> {
                (0..count).map(|_| random.below(values) as f64).collect()
            };
            let (old, new) = (draw(old), draw(new));
            let (p, expected) = (test.longer(&old, &new), counted(&old, &new));
            assert!((p - expected).abs() < 1e-12, "{old:?} {new:?}: {p}, not {expected}");
        }
    }

    #[test]
    fn the_normal_distribution_is_close_to_the_exact_one() {
        for u in [313, 350, 400, 450] {
            let (old, new) = samples(25, 25, u);
            let (exact, near) = (longer(&old, &new), normal(&pool(&old, &new), 25.0, 25.0));
            assert!((exact - near).abs() < 0.002, "U {u}: exact p {exact}, normal p {near}");
        }
    }

    #[test]
    fn missing_or_equal_samples_raise_no_alarm() {
        assert_eq!((longer(&[], &[1.0]), longer(&[1.0], &[]), ratio(&[], &[1.0])), (1.0, 1.0, 1.0));
        assert_eq!(longer(&[5.0; 20], &[5.0; 20]), 1.0);
        assert_eq!(longer(&[5.0; 40], &[5.0; 40]), 1.0);
        assert_eq!(holm(&[]), Vec::<f64>::new());
        assert!((least(20, 20) * 137_846_528_820.0 - 1.0).abs() < 1e-9);
        assert!(least(30, 30) < 1e-10 && least(1, 1) == 0.5 && least(0, 3) == 1.0);
    }

    #[test]
    fn holms_correction_matches_a_worked_example() {
        // 0.01, 0.04, 0.03 and 0.005 at the level of 0.05: the fourth and the first are alarms.
        let corrected = holm(&[0.01, 0.04, 0.03, 0.005]);
        for (value, expected) in corrected.iter().zip([0.03, 0.06, 0.06, 0.02]) {
            assert!((value - expected).abs() < 1e-12, "{corrected:?}");
        }
        assert_eq!(holm(&[0.9, 0.8]), [1.0, 1.0]);
    }

    #[test]
    fn the_ratio_is_the_median_of_all_ratios() {
        assert_eq!(ratio(&[1.0, 2.0], &[4.0]), 3.0);
        assert_eq!(ratio(&[1.0, 1.0, 100.0], &[2.0, 2.0, 2.0]), 2.0);
    }

    /// Returns times with a realistic distribution: many near each other, some far above.
    fn times(random: &mut Random, count: usize) -> Vec<f64> {
        let draw = |_| {
            let normal: f64 = (0..12).map(|_| random.unit()).sum::<f64>() - 6.0;
            let far = if random.chance(0.05) { 20.0 } else { 1.0 };
            5.0 * (0.1 * normal).exp() * far
        };
        (0..count).map(draw).collect()
    }

    #[test]
    fn false_alarms_are_as_rare_as_the_level_promises() {
        let (mut random, mut test) = (Random::new(1), RankTest::default());
        let (families, tests, level) = (3000, 12, 0.01);
        let (mut corrected, mut plain) = (0, 0);
        for _ in 0..families {
            let mut one = || {
                let (old, new) = (times(&mut random, 20), times(&mut random, 20));
                test.longer(&old, &new)
            };
            let all: Vec<f64> = (0..tests).map(|_| one()).collect();
            plain += u32::from(all.iter().any(|p| *p <= level));
            corrected += u32::from(holm(&all).iter().any(|p| *p <= level));
        }
        // A family is a set of tests that are corrected together. 1 % of the families are expected
        // to raise an alarm; the limit is four standard deviations higher. Without the correction,
        // one family in nine raises an alarm.
        assert!((5..=30 + 22).contains(&corrected), "{corrected} alarms in {families} families");
        assert!(plain > 250, "{plain} alarms in {families} families");
    }

    #[test]
    fn slowdowns_are_detected() {
        let (mut random, mut test) = (Random::new(2), RankTest::default());
        let seen = (0..200).filter(|_| {
            let old = times(&mut random, 20);
            let new: Vec<f64> = times(&mut random, 20).iter().map(|time| time * 1.25).collect();
            test.longer(&old, &new) < 0.01 / 24.0 && ratio(&old, &new) > 1.1
        });
        let seen = seen.count();
        assert!(seen > 180, "{seen} of 200 slowdowns were detected");
    }
}
