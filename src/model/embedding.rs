//! Embedding models, which turn texts into vectors for the search in the Store.

use async_trait::async_trait;

use super::ModelError;

/// A model that turns texts into vectors.
#[async_trait]
pub trait Embedder: Send + Sync {
    /// Returns one unit vector for each text, in their order, with the configured number of dimensions. The vector of
    /// an empty text may be all zeros.
    ///
    /// # Errors
    /// See [`ModelError`].
    async fn embed(&self, texts: Vec<String>) -> Result<Vec<Vec<f32>>, ModelError>;
}

/// Normalises a vector to length 1.
pub(super) fn normalise(mut vector: Vec<f32>) -> Vec<f32> {
    let length = vector.iter().map(|number| number * number).sum::<f32>().sqrt();
    if length > 0.0 && length.is_finite() {
        vector.iter_mut().for_each(|number| *number /= length);
    }
    vector
}

/// An embedder without a network. Each word has a vector derived from its hash, and the vector of a text is the sum of
/// those of its words. Texts with common words are similar, whatever they mean.
pub struct ScriptedEmbedder {
    dims: usize,
}

impl ScriptedEmbedder {
    /// Creates an embedder with `dims` dimensions.
    pub fn new(dims: usize) -> Self {
        Self { dims }
    }

    fn vector(&self, text: &str) -> Vec<f32> {
        let mut vector = vec![0.0; self.dims];
        let words = text
            .split(|letter: char| !letter.is_alphanumeric())
            .filter(|word| !word.is_empty());
        for word in words {
            let hash = hash(&word.to_lowercase());
            // Two dimensions for each word: it is rare that two words share both, even in short vectors.
            for part in [hash, hash.rotate_left(32)] {
                let index = usize::try_from(part % (self.dims as u64)).unwrap_or(0);
                vector[index] += if part & (1 << 63) == 0 { 1.0 } else { -1.0 };
            }
        }
        normalise(vector)
    }
}

/// Returns the FNV-1a hash of a word, which is the same on every machine and in every version.
fn hash(word: &str) -> u64 {
    let mixed = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let hash = word.bytes().fold(0xcbf2_9ce4_8422_2325, mixed);
    // The low bits of FNV-1a differ little between short words.
    (hash ^ (hash >> 29)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[async_trait]
impl Embedder for ScriptedEmbedder {
    async fn embed(&self, texts: Vec<String>) -> Result<Vec<Vec<f32>>, ModelError> {
        Ok(texts.iter().map(|text| self.vector(text)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn close(one: &str, other: &str) -> f32 {
        let texts = vec![one.to_owned(), other.to_owned()];
        let vectors = ScriptedEmbedder::new(64).embed(texts).await.expect("it never fails");
        vectors[0].iter().zip(&vectors[1]).map(|(a, b)| a * b).sum()
    }

    #[tokio::test]
    async fn texts_with_the_same_words_are_close() {
        assert!((close("Fish, and chips!", "chips and FISH").await - 1.0).abs() < 1e-5);
        let near = close("she likes fresh fish", "fish").await;
        let far = close("the train is late", "fish").await;
        assert!(near > 0.3 && far.abs() < 0.2 && near > far, "{near} {far}");
    }

    #[tokio::test]
    async fn a_text_always_has_the_same_vector_and_an_empty_one_is_zero() {
        let embedder = ScriptedEmbedder::new(8);
        let vectors = embedder
            .embed(vec!["a word".to_owned(), "a word".to_owned(), "…".to_owned()])
            .await
            .expect("vectors");
        assert_eq!(vectors[0], vectors[1]);
        assert_eq!(vectors[2], [0.0; 8]);
        let length: f32 = vectors[0].iter().map(|number| number * number).sum();
        assert!((length - 1.0).abs() < 1e-5);
    }
}
