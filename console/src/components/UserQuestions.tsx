import { useState } from "react";

import type { UserQuestion } from "../api/interrupts";
import type { Json } from "../api/types";
import { initialOf } from "../lib/schema";
import { SchemaForm } from "./SchemaForm";
import { Button, Field } from "./ui";

interface QuestionProperties {
  question: UserQuestion;
  number: number;
  value: Json;
  onChange: (value: Json) => void;
}

/** The choices of a question, and a field for another answer. */
function Choices({ question, number, value, onChange }: QuestionProperties) {
  const isMany = question.type === "multi_select";
  const choices = question.choices ?? [];
  const known = new Set(choices.map((choice) => choice.value));
  const chosen = Array.isArray(value) ? value.filter((each): each is string => typeof each === "string") : typeof value === "string" ? [value] : [];
  const other = chosen.find((each) => !known.has(each)) ?? "";
  const choose = (next: string[]) => onChange(isMany ? next : (next.at(-1) ?? null));
  return (
    <>
      {choices.map((choice) => (
        <label key={choice.value} className="row">
          <input
            type={isMany ? "checkbox" : "radio"}
            name={`question-${number}`}
            checked={chosen.includes(choice.value)}
            onChange={(event) => {
              if (!isMany) choose([choice.value]);
              else choose(event.target.checked ? [...chosen, choice.value] : chosen.filter((each) => each !== choice.value));
            }}
          />
          <span>
            {choice.value}
            {choice.description && <span className="muted"> {choice.description}</span>}
          </span>
        </label>
      ))}
      {question.allow_other !== false && (
        <Field label="Another answer">
          {({ id }) => (
            <input
              id={id}
              type="text"
              value={other}
              onChange={(event) => {
                const text = event.target.value;
                const rest = isMany ? chosen.filter((each) => known.has(each)) : [];
                choose(text ? [...rest, text] : rest);
              }}
            />
          )}
        </Field>
      )}
    </>
  );
}

function Answer({ question, number, value, onChange }: QuestionProperties) {
  if (question.type === "json") {
    const schema = question.schema ?? {};
    return <SchemaForm schema={schema} value={value ?? undefined} errors={{}} onChange={(next) => onChange(next ?? null)} />;
  }
  if (question.type !== "text") return <Choices question={question} number={number} value={value} onChange={onChange} />;
  return (
    <Field label="Answer">
      {({ id }) => <textarea id={id} rows={2} value={typeof value === "string" ? value : ""} onChange={(event) => onChange(event.target.value || null)} />}
    </Field>
  );
}

function isEmpty(value: Json): boolean {
  return value === null || value === "" || (Array.isArray(value) && value.length === 0);
}

/** A form for the questions of the tool `ask_user`. */
export function UserQuestions({ questions, onAnswer, isBusy, error }: { questions: UserQuestion[]; onAnswer: (response: Json) => void; isBusy: boolean; error: string | undefined }) {
  const [answers, setAnswers] = useState<Json[]>(() => questions.map(({ type, schema }) => (type === "json" ? (initialOf(schema ?? {}, schema ?? {}) ?? null) : null)));
  const missing = questions.filter(({ required }, index) => required !== false && isEmpty(answers[index] ?? null)).length;
  return (
    <form
      className="action"
      noValidate
      onSubmit={(event) => {
        event.preventDefault();
        onAnswer({ type: "answered", answers });
      }}
    >
      {questions.map((question, index) => (
        <fieldset key={index} className="user-question">
          <legend className="question">
            {question.question}
            {question.required === false && <span className="muted"> May be left out.</span>}
          </legend>
          <Answer question={question} number={index} value={answers[index] ?? null} onChange={(value) => setAnswers(answers.map((each, at) => (at === index ? value : each)))} />
        </fieldset>
      ))}
      {error && (
        <p className="field-error" role="alert">
          {error}
        </p>
      )}
      <div className="row">
        <Button type="submit" small kind="primary" busy={isBusy} disabled={missing > 0}>
          {missing > 0 ? `${missing} of ${questions.length} unanswered` : "Send the answers"}
        </Button>
        <Button small kind="ghost" disabled={isBusy} onClick={() => onAnswer({ type: "cancelled" })}>
          Cancel the questions
        </Button>
      </div>
    </form>
  );
}
