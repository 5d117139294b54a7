//! Pools and stream-ordered memory.

use anyhow::{Result, ensure};

use super::{CHUNK, Run};
use crate::command::{Answer, DEFAULT_POOL, InStream, OfPool, Place};
use crate::model::Pooled;

impl Run<'_> {
    /// Compares an allocation from a pool; the default pool stands for the GPU's current one.
    pub(super) fn judge_pooled(
        &mut self,
        index: usize,
        key: u32,
        (bytes, pool): (u64, u32),
        code: i32,
    ) -> Result<()> {
        let process = &self.model.processes[index];
        let pool = process.meant(pool);
        // The driver decides how a pool grows: by at most two chunks more than requested, and never
        // beyond its maximum size.
        let fits = self.model.fits(bytes.next_multiple_of(CHUNK) + 2 * CHUNK);
        let surely = fits && process.has_room(pool, bytes);
        let never = !self.model.might_fit(bytes) || process.is_beyond(pool, bytes);
        self.granted_if(surely, never, code)?;
        if self.counts(code) {
            let pooled = Pooled { bytes, pool, handle: None };
            self.model.processes[index].pooled.insert(key, pooled);
        }
        Ok(())
    }

    pub(super) fn judge_pool(
        &mut self,
        index: usize,
        about: OfPool,
        answer: &Answer,
    ) -> Result<()> {
        let code = answer.code;
        let has_domains = self.plan.is_of_two_domains();
        let process = &mut self.model.processes[index];
        match about {
            OfPool::Make { pool, most, place } => {
                ensure!(code == 0, "the pool was not made");
                process.pools.insert(pool, None);
                if most > 0 {
                    process.caps.insert(pool, most);
                }
                if let (Place::Domain(domain), true) = (place, has_domains) {
                    process.local.insert(pool, domain);
                }
                process.shares = true;
            }
            OfPool::End { pool, .. } => {
                ensure!(code == 0, "a pool with memory in use was not destroyed");
                process.destroy_pool(pool);
            }
            OfPool::Choose { pool, by } => {
                // A GPU can only use a pool of the whole GPU, a domain only its own pool.
                let of_all = pool == DEFAULT_POOL || !process.local.contains_key(&pool);
                match by {
                    None | Some(Place::Gpu) if of_all => {
                        ensure!(
                            code == 0 && answer.active,
                            "the GPU does not allocate from the pool"
                        );
                        process.current = pool;
                    }
                    None | Some(Place::Gpu) => {
                        ensure!(code != 0, "a GPU allocates from a domain's pool")
                    }
                    Some(_) if of_all => ensure!(code != 0, "a domain allocates from a GPU's pool"),
                    // The pool may be the other domain's.
                    Some(_) => {
                        ensure!(
                            code != 0 || answer.active,
                            "the domain does not allocate from the pool"
                        )
                    }
                }
            }
            OfPool::IsChosen { pool } => {
                ensure!(code == 0 && answer.active, "the GPU does not allocate from pool {pool}");
            }
        }
        Ok(())
    }

    pub(super) fn judge_stream(
        &mut self,
        index: usize,
        about: InStream,
        answer: &Answer,
    ) -> Result<()> {
        let code = answer.code;
        let process = &mut self.model.processes[index];
        match about {
            InStream::Create { context, stream, .. } => {
                ensure!(code == 0, "the stream was not made");
                process.streams.insert(stream, context);
            }
            InStream::Destroy { stream } => {
                ensure!(code == 0, "the stream was not destroyed");
                process.streams.remove(&stream);
            }
            InStream::Allocate { key, bytes, pool, .. } => {
                self.judge_pooled(index, key, (bytes, pool), code)?;
            }
            InStream::Free { key, .. } => {
                ensure!(code == 0, "the free in a stream was refused");
                process.pooled.remove(&key);
            }
            InStream::FreeLinear { key, .. } => {
                ensure!(code == 0, "the free in a stream was refused");
                process.free(key);
            }
            InStream::Order { .. } => ensure!(code == 0, "the streams were not ordered"),
            InStream::Wait { .. } => ensure!(code == 0, "the stream was not waited for"),
        }
        Ok(())
    }
}
