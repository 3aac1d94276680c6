/** Which call a generation gets: one of its own, or one that it shares with others. */

/** When generations share calls, and how many share one. */
export interface Sharing {
  /** So many at once have calls of their own before one shares a call. */
  numAlone: number;
  /** With this many on each open shared call, the next generation opens another one. */
  most: number;
}

/** For a program that always has many generations, such as a gateway. Routers accept more on each call. */
export const ALWAYS: Sharing = { numAlone: 0, most: 256 };
/** For proxies that cannot carry such calls. */
export const NEVER: Sharing = { numAlone: Number.POSITIVE_INFINITY, most: 0 };
/**
 * Few streams are as if no calls were shared, and a proxy that spreads calls over routers spreads them. So it does
 * with the shared calls that many streams need.
 */
export const BEYOND_FEW: Sharing = { numAlone: 8, most: 64 };

/** Return when a client's generations share calls, by its option `multiplex`. */
export function sharingOf(multiplex: boolean | undefined): Sharing {
  if (multiplex === undefined) return BEYOND_FEW;
  return multiplex ? ALWAYS : NEVER;
}

/**
 * Return the shared call that a generation goes to, as its place in `loads`; undefined for one of its own.
 *
 * `numAlone` is how many have calls of their own now, and `loads` how many are on each shared call that takes new
 * ones. A place behind the last one, `loads.length`, is a call to be opened. Among calls with room the one with the
 * fewest is chosen: a proxy may have spread them over routers.
 */
export function placeOf(sharing: Sharing, numAlone: number, loads: readonly number[]): number | undefined {
  if (numAlone < sharing.numAlone) return undefined;
  const fewest = Math.min(...loads, sharing.most);
  return fewest < sharing.most ? loads.indexOf(fewest) : loads.length;
}
