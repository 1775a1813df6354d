//! Ways to find the direction between two sets of rows.

/// How a direction is found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// From the mean of the negative rows to that of the positive ones.
    #[default]
    MeanDifference,
    /// The first principal component of the differences of pairs, the n-th positive row less the n-th negative one.
    Pca,
    /// The normal of the plane that logistic regression puts between them.
    Logistic,
}

impl Method {
    /// All of them.
    pub const ALL: [Method; 3] = [Method::MeanDifference, Method::Pca, Method::Logistic];

    /// As it is spelled on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Method::MeanDifference => "mean-difference",
            Method::Pca => "pca",
            Method::Logistic => "logistic",
        }
    }

    /// The direction of length 1 from negative to positive; zero if there is none.
    pub(super) fn direction(self, positive: &[Vec<f64>], negative: &[Vec<f64>]) -> Vec<f64> {
        let difference = subtract(&mean(positive), &mean(negative));
        let mut direction = match self {
            Method::MeanDifference => difference.clone(),
            Method::Pca => {
                let pairs: Vec<_> = positive.iter().zip(negative).map(|(p, n)| subtract(p, n)).collect();
                first_component(&pairs)
            }
            Method::Logistic => logistic(positive, negative),
        };
        let mut length = dot(&direction, &direction).sqrt();
        if dot(&direction, &difference) < 0.0 {
            length = -length;
        }
        if length != 0.0 {
            direction.iter_mut().for_each(|x| *x /= length);
        }
        direction
    }
}

pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

fn mean(rows: &[Vec<f64>]) -> Vec<f64> {
    let mut sum = vec![0.0; rows.first().map_or(0, Vec::len)];
    for row in rows {
        add(&mut sum, row, 1.0 / rows.len() as f64);
    }
    sum
}

fn subtract(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(x, y)| x - y).collect()
}

fn add(sum: &mut [f64], row: &[f64], factor: f64) {
    sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += factor * x);
}

/// The right singular vector of the largest singular value. There are fewer rows than columns, so the power iteration
/// is on the products of rows.
fn first_component(rows: &[Vec<f64>]) -> Vec<f64> {
    let products: Vec<Vec<f64>> = rows.iter().map(|a| rows.iter().map(|b| dot(a, b)).collect()).collect();
    // Unequal entries, so that the start is at right angles to no likely answer.
    let mut weights: Vec<f64> = (0..rows.len()).map(|i| 1.0 + i as f64 / rows.len() as f64).collect();
    for _ in 0..300 {
        let next: Vec<f64> = products.iter().map(|row| dot(row, &weights)).collect();
        let length = dot(&next, &next).sqrt();
        if length == 0.0 {
            break;
        }
        weights = next.iter().map(|x| x / length).collect();
    }
    let mut component = vec![0.0; rows.first().map_or(0, Vec::len)];
    rows.iter().zip(&weights).for_each(|(row, &weight)| add(&mut component, row, weight));
    component
}

/// L2-regularised logistic regression on rows about their common mean, scaled as one, by accelerated gradient descent.
fn logistic(positive: &[Vec<f64>], negative: &[Vec<f64>]) -> Vec<f64> {
    const PENALTY: f64 = 1e-2;
    let all: Vec<Vec<f64>> = positive.iter().chain(negative).cloned().collect();
    let centre = mean(&all);
    let mut rows: Vec<Vec<f64>> = all.iter().map(|row| subtract(row, &centre)).collect();
    let size = rows.iter().map(|row| dot(row, row)).sum::<f64>() / rows.len().max(1) as f64;
    if size == 0.0 {
        return centre.iter().map(|_| 0.0).collect();
    }
    rows.iter_mut().flatten().for_each(|x| *x /= size.sqrt());
    let largest = rows.iter().map(|row| dot(row, row)).fold(0.0, f64::max);
    let step = 1.0 / (0.25 * (largest + 1.0) + PENALTY);
    let (mut weights, mut bias) = (vec![0.0; centre.len()], 0.0);
    let (mut last, mut last_bias) = (weights.clone(), bias);
    for iteration in 0..300 {
        let momentum = iteration as f64 / (iteration as f64 + 3.0);
        let mut at = weights.clone();
        add(&mut at, &subtract(&weights, &last), momentum);
        let bias_at = bias + momentum * (bias - last_bias);
        let mut gradient: Vec<f64> = at.iter().map(|x| PENALTY * x).collect();
        let mut bias_gradient = 0.0;
        for (index, row) in rows.iter().enumerate() {
            let target = if index < positive.len() { 1.0 } else { 0.0 };
            let probability = 1.0 / (1.0 + (-dot(row, &at) - bias_at).exp());
            let error = (probability - target) / rows.len() as f64;
            add(&mut gradient, row, error);
            bias_gradient += error;
        }
        (last, last_bias) = (weights, bias);
        add(&mut at, &gradient, -step);
        (weights, bias) = (at, bias_at - step * bias_gradient);
    }
    weights
}
